//! Compares the results of a case of `KeyValueCache` with the expected ones.

use std::collections::BTreeMap;

use kvcache_schema::Attributes;

use crate::case::{Case, Expected, NanRule, Step};
use crate::demand::Demand;
use crate::difference::{
    Accept, Call, Difference, Indices, Location, Must, Pair, Slot, cache, first, integers, of_token, output, refused,
};
use crate::implementation::{CallResult, Outcome};
use crate::rules::OperatorPage;
use crate::suite::{Features, Suite};
use crate::tensor::Tensor;

impl Suite for Case {
    type Result = CallResult;

    const NAME: &'static str = "key-value-cache";

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
        OperatorPage::KeyValueCache
    }

    fn features(&self) -> Features {
        let attributes = Attributes::SPEC.iter().map(|spec| (spec.name, spec.value(&self.attributes)));
        let inputs = self.steps.first().map(|step| &step.inputs);
        let batch = inputs.and_then(|inputs| batch(&inputs.kvstarts));
        self.features_with(self.page(), attributes.chain(batch), inputs.map(|inputs| &inputs.current_key))
    }

    fn difference(&self, results: &[CallResult], demand: Demand) -> Option<Difference> {
        self.compare(results, demand, |step, name, tensor, index| self.locate(step, name, tensor, index))
    }
}

impl Case {
    /// What an element of a tensor of a call stands for.
    fn locate(&self, step: &Step, name: &'static str, tensor: &Tensor, index: usize) -> Option<Location> {
        let (inputs, attributes) = (&step.inputs, &self.attributes);
        if name == "key" || name == "value" {
            let repeat = usize::try_from(attributes.num_repeat).ok()?;
            let kvstarts = integers(&inputs.kvstarts);
            return output(tensor, index, repeat, |row| of_token(&kvstarts, *row.first()?)).map(Location::Output);
        }
        let indices =
            Indices { seqstarts: &inputs.seqstarts, kvstarts: &inputs.kvstarts, cachestarts: &inputs.cachestarts };
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

impl<A, I> Case<A, I> {
    /// The first difference, where each call must do what `must` says; `locate` says what an element of a tensor of a
    /// call stands for.
    pub(crate) fn compare(
        &self,
        results: &[CallResult],
        demand: Demand,
        locate: impl Fn(&Step<I>, &'static str, &Tensor, usize) -> Option<Location>,
    ) -> Option<Difference> {
        first(&self.steps, results, |step, previous, result| {
            let (cache, scale) = previous
                .map_or((&self.cache, self.scale.as_ref()), |previous| (&previous.cache, previous.scale.as_ref()));
            let pair = |name, got, expected, nan| Pair { name, got, expected, accept: Accept::Bits(nan) };
            let state = |cache, scale, nan| {
                [pair("scale", result.scale.as_ref(), scale, nan), pair("cache", Some(&result.cache), Some(cache), nan)]
            };
            let after = match (&step.expected, &result.outcome) {
                (Expected::Success(after), Outcome::Done(done)) => {
                    let outputs = [
                        pair("key", Some(&done.key), Some(&after.outputs.key), self.nan),
                        pair("value", Some(&done.value), Some(&after.outputs.value), self.nan),
                    ];
                    state(&after.cache, after.scale.as_ref(), self.nan).into_iter().chain(outputs).collect()
                }
                _ => Vec::new(),
            };
            let call = Call {
                must: Must::of(&step.expected, demand),
                refused: refused(&result.outcome),
                before: state(cache, scale, NanRule::Exact).into(),
                after,
            };
            call.mismatch(|name, tensor, index| locate(step, name, tensor, index))
        })
    }

    /// What an implementation must be able to do, given the attributes by name and the first `current_key`.
    pub(crate) fn features_with(
        &self,
        operator: OperatorPage,
        attributes: impl Iterator<Item = (&'static str, i64)>,
        current_key: Option<&Tensor>,
    ) -> Features {
        let mut types = BTreeMap::from([("T1", self.types.t1), ("T2", self.types.t2)]);
        types.extend(self.types.t3.map(|t3| ("T3", t3)));
        let mut numbers: BTreeMap<_, _> = attributes.collect();
        numbers.extend(current_key.into_iter().flat_map(head_sizes));
        Features { operator, types, numbers }
    }
}

/// The number of sequences, by their starts.
pub(crate) fn batch(kvstarts: &Tensor) -> Option<(&'static str, i64)> {
    let &[starts] = kvstarts.shape() else { return None };
    Some(("batch", i64::try_from(starts).ok()?.checked_sub(1)?))
}

/// The sizes of the two innermost axes of a `current_key`.
pub(crate) fn head_sizes(current_key: &Tensor) -> impl Iterator<Item = (&'static str, i64)> + use<> {
    let sizes = match current_key.shape() {
        &[.., heads, head_dim] => vec![("cache_heads", heads), ("head_dim", head_dim)],
        _ => Vec::new(),
    };
    sizes.into_iter().filter_map(|(name, size)| Some((name, i64::try_from(size).ok()?)))
}
