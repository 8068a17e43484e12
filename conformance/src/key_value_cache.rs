//! The cases of both `KeyValueCache` as suites, and those of dynamic batching.

use std::collections::BTreeMap;

use kvcache_schema::{Attributes, ElementType};

use crate::case::{Case, NamedInputs, NanRule, StepInputs};
use crate::difference::{Indices, Location, Slot, cache, integers, of_token, output};
use crate::rules::OperatorPage;
use crate::suite::{State, Suite, fields_of_case};
use crate::tensor::Tensor;

/// The inputs of a `KeyValueCache` with attributes `A`, and what its suite is.
pub trait CaseInputs<A>: NamedInputs + Sync {
    /// The suite's name.
    const SUITE: &'static str;

    /// The operator's page.
    const PAGE: OperatorPage;

    /// The attributes by their names.
    fn attributes(attributes: &A) -> Vec<(&'static str, i64)>;

    /// `current_key` and `current_value`.
    fn current(&self) -> [&Tensor; 2];

    /// The number of sequences, as far as shapes say.
    fn batch(&self) -> Option<i64>;

    /// What an element of a tensor of a call stands for.
    fn locate(&self, attributes: &A, name: &str, tensor: &Tensor, index: usize) -> Option<Location>;
}

impl<A: Sync, I: CaseInputs<A>> Suite for Case<A, I> {
    const NAME: &'static str = I::SUITE;
    const OUTPUTS: &'static [&'static str] = &["key", "value"];

    fields_of_case!();

    fn page(&self) -> OperatorPage {
        I::PAGE
    }

    fn types(&self) -> BTreeMap<&'static str, ElementType> {
        let t3 = self.types.t3.map(|t3| ("T3", t3));
        [("T1", self.types.t1), ("T2", self.types.t2)].into_iter().chain(t3).collect()
    }

    fn attributes(&self) -> Vec<(&'static str, i64)> {
        I::attributes(&self.attributes)
    }

    fn sizes(&self) -> Vec<(&'static str, i64)> {
        let Some(step) = self.steps.first() else { return Vec::new() };
        let batch = step.inputs.batch().map(|batch| ("batch", batch));
        batch.into_iter().chain(head_sizes(step.inputs.current()[0])).collect()
    }

    fn nan(&self) -> NanRule {
        self.nan
    }

    fn state(&self) -> State<'_> {
        [Some(&self.cache), self.scale.as_ref()]
    }

    fn locate(&self, call: usize, name: &str, tensor: &Tensor, index: usize) -> Option<Location> {
        self.steps[call].inputs.locate(&self.attributes, name, tensor, index)
    }
}

impl CaseInputs<Attributes> for StepInputs {
    const SUITE: &'static str = "key-value-cache";
    const PAGE: OperatorPage = OperatorPage::KeyValueCache;

    fn attributes(attributes: &Attributes) -> Vec<(&'static str, i64)> {
        Attributes::SPEC.iter().map(|spec| (spec.name, spec.value(attributes))).collect()
    }

    fn current(&self) -> [&Tensor; 2] {
        [&self.current_key, &self.current_value]
    }

    fn batch(&self) -> Option<i64> {
        batch(&self.kvstarts)
    }

    fn locate(&self, attributes: &Attributes, name: &str, tensor: &Tensor, index: usize) -> Option<Location> {
        if name == "key" || name == "value" {
            let repeat = usize::try_from(attributes.num_repeat).ok()?;
            let kvstarts = integers(&self.kvstarts);
            return output(tensor, index, repeat, |row| of_token(&kvstarts, *row.first()?)).map(Location::Output);
        }
        let indices = Indices { seqstarts: &self.seqstarts, kvstarts: &self.kvstarts, cachestarts: &self.cachestarts };
        in_cache(attributes, indices, name == "scale", tensor, index)
    }
}

/// What an element of `cache` or `scale` stands for, in dynamic batching.
pub(crate) fn in_cache(
    attributes: &Attributes,
    indices: Indices<'_>,
    is_scale: bool,
    tensor: &Tensor,
    index: usize,
) -> Option<Location> {
    let mut location = cache(attributes.cache_layout, tensor, index, is_scale)?;
    // The tokens of a call have slots in its own layer alone.
    if let (Slot::Number(slot), true) = (location.slot, i64::try_from(location.layer) == Ok(attributes.layer_idx)) {
        location.owners = indices.owners(attributes.cache_mode, attributes.page_size, slot);
    }
    Some(Location::Cache(location))
}

/// The number of sequences, by their starts.
pub(crate) fn batch(kvstarts: &Tensor) -> Option<i64> {
    let &[starts] = kvstarts.shape() else { return None };
    i64::try_from(starts).ok()?.checked_sub(1)
}

/// The sizes of the two innermost axes of a `current_key`.
pub(crate) fn head_sizes(current_key: &Tensor) -> impl Iterator<Item = (&'static str, i64)> + use<> {
    let sizes = match current_key.shape() {
        &[.., heads, head_dim] => vec![("cache_heads", heads), ("head_dim", head_dim)],
        _ => Vec::new(),
    };
    sizes.into_iter().filter_map(|(name, size)| Some((name, i64::try_from(size).ok()?)))
}
