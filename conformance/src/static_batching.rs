//! The cases of `KeyValueCache` of static batching. They are like those of dynamic batching but for their attributes
//! and inputs, and [`run`](crate::run) runs them, too.

use kvcache_schema::StaticAttributes;

use crate::case::step_inputs;
use crate::difference::{Location, Slot, output, static_cache, static_owner};
use crate::files::{CaseFiles, Cause, readers};
use crate::read::{CaseInputs, read_case};
use crate::rules::OperatorPage;
use crate::tensor::Tensor;

pub use kvcache_schema::StaticAttributes as Attributes;

/// A node with its state, and calls that are made one after the other.
pub type Case = crate::Case<StaticAttributes, StepInputs>;

/// One call.
pub type Step = crate::Step<StepInputs>;

step_inputs!(current_key, current_value, start_pos);

impl CaseInputs<StaticAttributes> for StepInputs {
    const SUITE: &'static str = "static";
    const PAGE: OperatorPage = OperatorPage::StaticKeyValueCache;

    fn attributes(attributes: &StaticAttributes) -> Vec<(&'static str, i64)> {
        StaticAttributes::SPEC.iter().map(|spec| (spec.name, spec.value(attributes))).collect()
    }

    fn current(&self) -> [&Tensor; 2] {
        [&self.current_key, &self.current_value]
    }

    fn batch(&self) -> Option<i64> {
        i64::try_from(*self.current_key.shape().first()?).ok()
    }

    fn locate(&self, attributes: &StaticAttributes, name: &str, tensor: &Tensor, index: usize) -> Option<Location> {
        if name == "key" || name == "value" {
            let repeat = usize::try_from(attributes.num_repeat).ok()?;
            let token = |outer: &[usize]| match *outer {
                [sequence, position] => Some((sequence, position)),
                _ => None,
            };
            return output(tensor, index, repeat, token).map(Location::Output);
        }
        let mut location = static_cache(attributes.cache_layout, tensor, index, name == "scale")?;
        let own_layer = i64::try_from(location.layer) == Ok(attributes.layer_idx);
        if let (Slot::Place { row, position }, true) = (location.slot, own_layer) {
            location.owners = static_owner(&self.current_key, &self.start_pos, row, position).into_iter().collect();
        }
        Some(Location::Cache(location))
    }
}

readers!("static_cases", read);

fn read(files: &CaseFiles<'_>) -> Result<Case, Cause> {
    read_case(files, OperatorPage::StaticKeyValueCache, StaticAttributes::set, |tensor| StepInputs::of(tensor))
}
