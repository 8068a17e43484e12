//! The rules of a legal call of the attention operators, in stages: those of a stage can be asked only where those
//! before hold. What `KeyValueCache` refuses of a call over a cache is asked after them.

use kvcache_schema::{AttentionAttributes, ElementType};

use crate::attention::{Operator, Step};
use crate::oracle::call::{indices, number};
use crate::oracle::refusal::Refusal;
use crate::oracle::shared_rules as shared;
use crate::tensor::Tensor;

/// A call of an attention operator, as far as its own rules go.
pub(super) struct AttentionCall<'a> {
    pub(super) operator: Operator,
    pub(super) attributes: &'a AttentionAttributes,
    pub(super) t1: ElementType,
    pub(super) step: &'a Step,
}

/// The broken rules of the first stage that has any.
pub(super) fn broken_rules(call: &AttentionCall<'_>) -> Vec<Refusal> {
    let packed = call.operator == Operator::MultiHeadAttention;
    let mut stages: Vec<Stage> = vec![attributes, types, ranks, shapes];
    if packed {
        stages.push(starts);
    }
    stages.push(bounds);
    stages.iter().map(|stage| stage(call)).find(|broken| !broken.is_empty()).unwrap_or_default()
}

type Stage = fn(&AttentionCall<'_>) -> Vec<Refusal>;

impl<'a> AttentionCall<'a> {
    fn input(&self, name: &str) -> &'a Tensor {
        self.step.input(name)
    }

    /// The mask, if it has elements.
    fn mask(&self) -> Option<&'a Tensor> {
        self.step.inputs.get("attn_mask").filter(|mask| !mask.shape().contains(&0))
    }

    /// The names of keys and values.
    fn keys(&self) -> [&'static str; 2] {
        match self.operator {
            Operator::MultiHeadAttention => ["key", "value"],
            Operator::MultiHeadCacheAttention => ["current_key", "current_value"],
        }
    }

    /// The indices that `KeyValueCache` does not check, or not for this operator.
    fn own_indices(&self) -> &'static [&'static str] {
        match self.operator {
            Operator::MultiHeadAttention => &["seqstarts", "kvstarts", "decoding_batches", "max_seqlen", "max_kvlen"],
            Operator::MultiHeadCacheAttention => &["decoding_batches"],
        }
    }
}

/// Each attribute is in its range.
fn attributes(call: &AttentionCall<'_>) -> Vec<Refusal> {
    let outside = |name: &str, value: i64, expected: String| {
        Refusal::new("attribute_out_of_range", format!("attribute {name} is {value}, expected {expected}"))
    };
    let specs = AttentionAttributes::SPEC.iter().filter(|spec| !spec.contains(spec.value(call.attributes)));
    let mut broken: Vec<_> = specs
        .map(|spec| outside(spec.name, spec.value(call.attributes), format!("{} to {:?}", spec.min, spec.max)))
        .collect();
    let &AttentionAttributes { num_heads, num_kv_heads, .. } = call.attributes;
    if num_heads >= 1 && num_kv_heads >= 1 && num_heads % num_kv_heads != 0 {
        broken.push(outside("num_kv_heads", num_kv_heads, format!("a divisor of num_heads, {num_heads}")));
    }
    broken
}

/// T1 has scores, and every tensor has the type it should have.
fn types(call: &AttentionCall<'_>) -> Vec<Refusal> {
    if !matches!(call.t1, ElementType::Float32 | ElementType::Float16) {
        return vec![Refusal::new("attention_type", format!("T1 is {}, which has no scores", call.t1))];
    }
    let of_t1 = |name: &str, tensor: &Tensor| shared::element(name, tensor, call.t1);
    let mut broken: Vec<_> = of_t1("query", call.input("query")).into_iter().collect();
    broken.extend(call.mask().and_then(|mask| of_t1("attn_mask", mask)));
    broken.extend(call.keys().into_iter().filter_map(|name| of_t1(name, call.input(name))));
    let index = |name: &&str| shared::element(name, call.input(name), ElementType::Int64);
    broken.extend(call.own_indices().iter().filter_map(index));
    broken
}

/// Every tensor has its rank; numbers have rank 0 or 1, a mask 2 or 3.
fn ranks(call: &AttentionCall<'_>) -> Vec<Refusal> {
    let mut broken: Vec<_> = shared::rank("query", call.input("query"), &[3]).into_iter().collect();
    broken.extend(call.mask().and_then(|mask| shared::rank("attn_mask", mask, &[2, 3])));
    broken.extend(call.keys().into_iter().filter_map(|name| shared::rank(name, call.input(name), &[3])));
    let index = |name: &&str| {
        let ranks: &[usize] = if name.ends_with("starts") { &[1] } else { &[0, 1] };
        shared::rank(name, call.input(name), ranks)
    };
    broken.extend(call.own_indices().iter().filter_map(index));
    broken
}

/// Heads are those of the attributes, rows those of the other tensors.
fn shapes(call: &AttentionCall<'_>) -> Vec<Refusal> {
    let size = |value: i64| usize::try_from(value).unwrap_or(usize::MAX);
    let &AttentionAttributes { num_heads, num_kv_heads, head_dim, .. } = call.attributes;
    let kv_heads = size(if num_kv_heads == 0 { num_heads } else { num_kv_heads });
    let rows = |name: &str| call.input(name).shape()[0];
    let packed = call.operator == Operator::MultiHeadAttention;
    let [key, value] = call.keys();
    // Over a cache, a query has the rows of the current tokens; packed keys have rows of their own.
    let tokens = rows(if packed { "query" } else { key });
    let mut broken = shared::shape("query", call.input("query").shape(), &[tokens, size(num_heads), size(head_dim)]);
    broken.extend(shared::shape(key, call.input(key).shape(), &[rows(key), kv_heads, size(head_dim)]));
    if packed {
        broken.extend(shared::shape(value, call.input(value).shape(), call.input(key).shape()));
        let entries = call.input("seqstarts").shape()[0];
        if entries == 0 {
            broken.push(Refusal::new("shape_mismatch", "seqstarts has 0 entries, expected one more than sequences"));
        }
        broken.extend(shared::shape("kvstarts", call.input("kvstarts").shape(), &[entries]));
        broken.extend(shared::shape("max_seqlen", call.input("max_seqlen").shape(), &[1]));
        broken.extend(shared::shape("max_kvlen", call.input("max_kvlen").shape(), &[1]));
    }
    if let Some(mask) = call.mask() {
        let (planes_and_rows, expected) = (&mask.shape()[..mask.shape().len() - 1], [size(num_heads), rows("query")]);
        broken.extend(shared::shape("attn_mask", planes_and_rows, &expected[2 - planes_and_rows.len()..]));
    }
    broken.extend(shared::shape("decoding_batches", call.input("decoding_batches").shape(), &[1]));
    broken
}

/// Starts begin with 0, never decrease, and end with the rows that they are of.
fn starts(call: &AttentionCall<'_>) -> Vec<Refusal> {
    let mut broken = Vec::new();
    for (name, of) in [("seqstarts", "query"), ("kvstarts", "key")] {
        let (starts, rows) = (indices(call.input(name)), call.input(of).shape()[0]);
        broken.extend(shared::rising(name, &starts));
        broken.extend(shared::total(name, &starts, rows, &format!("the rows of {of}")));
    }
    broken
}

/// `max_seqlen` and `max_kvlen` are upper bounds, a mask has a column for every key, and `decoding_batches` counts.
fn bounds(call: &AttentionCall<'_>) -> Vec<Refusal> {
    let read = |name: &str| indices(call.input(name));
    let number = |name: &str| number(call.input(name));
    let mut broken = Vec::new();
    if call.operator == Operator::MultiHeadAttention {
        for (name, starts) in [("max_seqlen", "seqstarts"), ("max_kvlen", "kvstarts")] {
            broken.extend(shared::bound(name, number(name), &read(starts)));
        }
    }
    let keys = read("kvstarts").last().copied().unwrap_or_default();
    if let Some(&width) = call.mask().and_then(|mask| mask.shape().last())
        && i128::from(keys) > width as i128
    {
        let message = format!("attn_mask has {width} columns, expected at least {keys}, kvstarts' last entry");
        broken.push(Refusal::new("mask_too_small", message));
    }
    let decoding_batches = number("decoding_batches");
    if decoding_batches < 0 {
        let message = format!("decoding_batches is {decoding_batches}, expected at least 0");
        broken.push(Refusal::new("decoding_batches_negative", message));
    }
    broken
}
