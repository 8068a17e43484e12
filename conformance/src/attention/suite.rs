//! The cases of attention as a suite.

use std::collections::BTreeMap;

use kvcache_schema::{AttentionAttributes, Attributes, CacheAttentionAttributes, ElementType};

use super::case::{Case, Operator};
use crate::case::NanRule;
use crate::difference::{Indices, Location, integers, of_token, output};
use crate::read::{batch, head_sizes, in_cache};
use crate::rules::OperatorPage;
use crate::suite::{State, Suite, fields_of_case};
use crate::tensor::Tensor;

impl Suite for Case {
    const NAME: &'static str = "attention";
    const OUTPUTS: &'static [&'static str] = &["attn_output"];

    fields_of_case!();

    fn page(&self) -> OperatorPage {
        self.operator.page()
    }

    fn types(&self) -> BTreeMap<&'static str, ElementType> {
        let t2 = self.cache.as_ref().map(|cache| ("T2", cache.element()));
        let t3 = self.scale.as_ref().map(|scale| ("T3", scale.element()));
        [("T1", self.t1)].into_iter().chain(t2).chain(t3).collect()
    }

    fn attributes(&self) -> Vec<(&'static str, i64)> {
        let CacheAttentionAttributes { attention, cache } = &self.attributes;
        let of_attention = AttentionAttributes::SPEC.iter().map(|spec| (spec.name, spec.value(attention)));
        let of_cache = Attributes::SPEC.iter().map(|spec| (spec.name, spec.value(cache)));
        let has_cache = self.operator == Operator::MultiHeadCacheAttention;
        let of_cache = of_cache.filter(|(name, _)| has_cache && *name != CacheAttentionAttributes::NOT_AN_ATTRIBUTE);
        of_attention.chain(of_cache).collect()
    }

    fn sizes(&self) -> Vec<(&'static str, i64)> {
        let key = match self.operator {
            Operator::MultiHeadAttention => "key",
            Operator::MultiHeadCacheAttention => "current_key",
        };
        let input = |name: &str| self.steps.first().and_then(|step| step.inputs.get(name));
        let heads = input(key).into_iter().flat_map(head_sizes).filter(|(name, _)| *name == "cache_heads");
        input("kvstarts").and_then(batch).map(|batch| ("batch", batch)).into_iter().chain(heads).collect()
    }

    fn nan(&self) -> NanRule {
        NanRule::Exact
    }

    fn state(&self) -> State<'_> {
        [self.cache.as_ref(), self.scale.as_ref()]
    }

    fn locate(&self, call: usize, name: &str, tensor: &Tensor, index: usize) -> Option<Location> {
        let step = &self.steps[call];
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
