//! The cases of `KeyValueCache` of static batching. They are like those of dynamic batching but for their attributes
//! and inputs, and [`run`](crate::run) runs them, too.

use std::path::Path;

use kvcache_schema::StaticAttributes;

use crate::case::NamedInputs;
use crate::case_files::{CaseFiles, Cause, ReadError};
use crate::demand::Demand;
use crate::difference::{Difference, Location, Slot, output, static_cache, static_owner};
use crate::files::{committed, read_folders};
use crate::implementation::CallResult;
use crate::read::read_case;
use crate::rules::OperatorPage;
use crate::suite::{Features, Suite};
use crate::tensor::Tensor;

pub use kvcache_schema::StaticAttributes as Attributes;

/// A node with its state, and calls that are made one after the other.
pub type Case = crate::Case<StaticAttributes, StepInputs>;

impl Case {
    /// The page that states its rules.
    pub const fn page(&self) -> OperatorPage {
        OperatorPage::StaticKeyValueCache
    }
}

/// One call.
pub type Step = crate::Step<StepInputs>;

/// The inputs of a call other than `cache` and `scale`.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the fields are the operator's inputs")]
pub struct StepInputs {
    pub current_key: Tensor,
    pub current_value: Tensor,
    pub start_pos: Tensor,
}

impl NamedInputs for StepInputs {
    fn named(&self) -> Vec<(&'static str, &Tensor)> {
        vec![("current_key", &self.current_key), ("current_value", &self.current_value), ("start_pos", &self.start_pos)]
    }
}

impl Suite for Case {
    type Result = CallResult;

    const NAME: &'static str = "static";

    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &str {
        &self.about
    }

    fn rules(&self) -> &[String] {
        &self.rules
    }

    fn page(&self) -> OperatorPage {
        OperatorPage::StaticKeyValueCache
    }

    fn features(&self) -> Features {
        let attributes = StaticAttributes::SPEC.iter().map(|spec| (spec.name, spec.value(&self.attributes)));
        let current_key = self.steps.first().map(|step| &step.inputs.current_key);
        let batch = current_key.and_then(|tensor| Some(("batch", i64::try_from(*tensor.shape().first()?).ok()?)));
        self.features_with(self.page(), attributes.chain(batch), current_key)
    }

    fn difference(&self, results: &[CallResult], demand: Demand) -> Option<Difference> {
        self.compare(results, demand, |step, name, tensor, index| self.locate(step, name, tensor, index))
    }
}

impl Case {
    /// What an element of a tensor of a call stands for.
    fn locate(&self, step: &Step, name: &'static str, tensor: &Tensor, index: usize) -> Option<Location> {
        if name == "key" || name == "value" {
            let repeat = usize::try_from(self.attributes.num_repeat).ok()?;
            let token = |outer: &[usize]| match *outer {
                [sequence, position] => Some((sequence, position)),
                _ => None,
            };
            return output(tensor, index, repeat, token).map(Location::Output);
        }
        let mut location = static_cache(self.attributes.cache_layout, tensor, index, name == "scale")?;
        let own_layer = i64::try_from(location.layer) == Ok(self.attributes.layer_idx);
        if let (Slot::Place { row, position }, true) = (location.slot, own_layer) {
            let StepInputs { current_key, start_pos, .. } = &step.inputs;
            location.owners = static_owner(current_key, start_pos, row, position).into_iter().collect();
        }
        Some(Location::Cache(location))
    }
}

/// The cases of this suite, by name.
///
/// # Errors
/// If there is none, or one cannot be read.
pub fn cases() -> Result<Vec<Case>, ReadError> {
    committed("static_cases", read)
}

/// The cases in the subfolders of `folder`, by name.
///
/// # Errors
/// If there is none, or one cannot be read.
pub fn read_cases(folder: &Path) -> Result<Vec<Case>, ReadError> {
    read_folders(folder, read)
}

/// The case of these files.
fn read(files: &CaseFiles<'_>) -> Result<Case, Cause> {
    read_case(files, OperatorPage::StaticKeyValueCache, StaticAttributes::set, |tensor| {
        Ok(StepInputs {
            current_key: tensor("current_key")?,
            current_value: tensor("current_value")?,
            start_pos: tensor("start_pos")?,
        })
    })
}
