//! Compares the results of a case with the expected ones.

use std::collections::BTreeMap;

use kvcache_schema::{AttentionAttributes, Attributes, CacheAttentionAttributes};

use super::case::{Case, Operator, Step};
use super::implementation::CallResult;
use crate::case::{Expected, NanRule};
use crate::compare::{batch, head_sizes, in_cache};
use crate::demand::Demand;
use crate::difference::{
    Accept, Call, Difference, Indices, Location, Must, Pair, first, integers, of_token, output, refused,
};
use crate::implementation::Outcome;
use crate::rules::OperatorPage;
use crate::suite::{Features, Suite};
use crate::tensor::Tensor;

impl Suite for Case {
    type Result = CallResult;

    const NAME: &'static str = "attention";

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
        self.operator.page()
    }

    fn features(&self) -> Features {
        let CacheAttentionAttributes { attention, cache } = &self.attributes;
        let mut numbers: BTreeMap<_, _> =
            AttentionAttributes::SPEC.iter().map(|spec| (spec.name, spec.value(attention))).collect();
        if self.operator == Operator::MultiHeadCacheAttention {
            let of_cache =
                Attributes::SPEC.iter().filter(|spec| spec.name != CacheAttentionAttributes::NOT_AN_ATTRIBUTE);
            numbers.extend(of_cache.map(|spec| (spec.name, spec.value(cache))));
        }
        let key = match self.operator {
            Operator::MultiHeadAttention => "key",
            Operator::MultiHeadCacheAttention => "current_key",
        };
        let input = |name: &str| self.steps.first().and_then(|step| step.inputs.get(name));
        numbers.extend(input("kvstarts").and_then(batch));
        let heads = input(key).into_iter().flat_map(head_sizes).filter(|(name, _)| *name == "cache_heads");
        numbers.extend(heads);
        let mut types = BTreeMap::from([("T1", self.t1)]);
        types.extend(self.cache.as_ref().map(|cache| ("T2", cache.element())));
        types.extend(self.scale.as_ref().map(|scale| ("T3", scale.element())));
        Features { operator: self.page(), types, numbers }
    }

    fn difference(&self, results: &[CallResult], demand: Demand) -> Option<Difference> {
        first(&self.steps, results, |step, previous, result| {
            let (cache, scale) = previous.map_or((self.cache.as_ref(), self.scale.as_ref()), |previous| {
                (previous.cache.as_ref(), previous.scale.as_ref())
            });
            let state = |cache, scale| {
                let accept = Accept::Bits(NanRule::Exact);
                [
                    Pair { name: "scale", got: result.scale.as_ref(), expected: scale, accept },
                    Pair { name: "cache", got: result.cache.as_ref(), expected: cache, accept },
                ]
            };
            let after = match (&step.expected, &result.outcome) {
                (Expected::Success(after), Outcome::Done(output)) => {
                    let accept = Accept::Within { tolerance: &after.tolerance, element: self.t1 };
                    let output =
                        Pair { name: "attn_output", got: Some(output), expected: Some(&after.attn_output), accept };
                    state(after.cache.as_ref(), after.scale.as_ref()).into_iter().chain([output]).collect()
                }
                _ => Vec::new(),
            };
            let call = Call {
                must: Must::of(&step.expected, demand),
                refused: refused(&result.outcome),
                before: state(cache, scale).into(),
                after,
            };
            call.mismatch(|name, tensor, index| self.locate(step, name, tensor, index))
        })
    }
}

impl Case {
    /// What an element of a tensor of a call stands for.
    fn locate(&self, step: &Step, name: &'static str, tensor: &Tensor, index: usize) -> Option<Location> {
        let starts = |name: &str| step.inputs.get(name).map(integers);
        if name == "attn_output" {
            let AttentionAttributes { num_heads, num_kv_heads, .. } = self.attributes.attention;
            let group = if num_kv_heads == 0 { 1 } else { num_heads.checked_div(num_kv_heads)? };
            let (seqstarts, kvstarts) = (starts("seqstarts")?, starts("kvstarts")?);
            // The queries are the last tokens of their sequence.
            let token = |row: &[usize]| {
                let (sequence, query) = of_token(&seqstarts, *row.first()?)?;
                let length = |starts: &[i64]| starts.get(sequence + 1)?.checked_sub(*starts.get(sequence)?);
                let past = length(&kvstarts)?.checked_sub(length(&seqstarts)?)?;
                Some((sequence, usize::try_from(past).ok()?.checked_add(query)?))
            };
            return output(tensor, index, usize::try_from(group).ok()?, token).map(Location::Output);
        }
        let indices = Indices {
            seqstarts: step.inputs.get("seqstarts")?,
            kvstarts: step.inputs.get("kvstarts")?,
            cachestarts: step.inputs.get("cachestarts")?,
        };
        in_cache(&self.attributes.cache, indices, name == "scale", tensor, index)
    }
}
