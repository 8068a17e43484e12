//! The rules of a legal call of attention, as the specification has them: what the conformance suite's oracle does not
//! know. They share no code with validation.

use kvcache_op::ElementType;

use crate::call::{Call, Operator};
use crate::operand::Operand;

/// The rules of attention that a call breaks, in stages: those of a stage can be asked only where those before hold.
/// Of `MultiHeadCacheAttention` those that `KeyValueCache` has, too, are not among them.
pub fn broken_rules(call: &Call) -> Vec<&'static str> {
    let stages = [attributes, types, shapes, indices];
    stages.iter().map(|stage| stage(call)).find(|broken| !broken.is_empty()).unwrap_or_default()
}

/// The names of those that do not hold.
fn broken(rules: &[(&'static str, bool)]) -> Vec<&'static str> {
    rules.iter().filter(|(_, holds)| !holds).map(|&(name, _)| name).collect()
}

fn get<'c>(call: &'c Call, name: &str) -> &'c Operand {
    call.operand(name).unwrap_or_else(|| unreachable!("{name} is always given"))
}

fn attributes(call: &Call) -> Vec<&'static str> {
    let value = |name| call.attribute(name);
    let (num_heads, num_kv_heads) = (value("num_heads"), value("num_kv_heads"));
    broken(&[
        ("num_heads is 1 or more", num_heads >= 1),
        ("head_dim is 1 or more", value("head_dim") >= 1),
        ("is_causal is 0 or 1", [0, 1].contains(&value("is_causal"))),
        ("is_alibi is 0 or 1", [0, 1].contains(&value("is_alibi"))),
        ("num_kv_heads is 0 or more", num_kv_heads >= 0),
        ("num_kv_heads divides num_heads", num_kv_heads <= 0 || num_heads % num_kv_heads == 0),
    ])
}

/// The mask, if it has elements: else it is none.
fn mask(call: &Call) -> Option<&Operand> {
    call.operand("attn_mask").filter(|mask| !mask.shape.contains(&0))
}

fn types(call: &Call) -> Vec<&'static str> {
    let t1 = get(call, "query").element;
    let is_index = |name| get(call, name).element == ElementType::Int64;
    let of_t1 = |names: &[&str]| names.iter().all(|name| get(call, name).element == t1);
    let packed = call.operator == Operator::MultiHeadAttention;
    broken(&[
        ("T1 is float32 or float16", [ElementType::Float32, ElementType::Float16].contains(&t1)),
        ("keys and values are T1", of_t1(if packed { &["key", "value"] } else { &["current_key", "current_value"] })),
        ("attn_mask is T1", mask(call).is_none_or(|mask| mask.element == t1)),
        ("seqstarts is int64", is_index("seqstarts")),
        ("kvstarts is int64", is_index("kvstarts")),
        ("decoding_batches is int64", is_index("decoding_batches")),
        ("max_seqlen is int64", is_index("max_seqlen")),
        ("max_kvlen is int64", is_index("max_kvlen")),
    ])
}

fn shapes(call: &Call) -> Vec<&'static str> {
    let shape = |name| &get(call, name).shape[..];
    let heads = |name: &str| call.attribute(name) as usize;
    let (num_heads, head_dim) = (heads("num_heads"), heads("head_dim"));
    let num_kv_heads = if heads("num_kv_heads") == 0 { num_heads } else { heads("num_kv_heads") };
    let is_rows = |name, heads| matches!(*shape(name), [_, h, d] if (h, d) == (heads, head_dim));
    let is_number = |name| matches!(shape(name), [] | [1]);
    let [key, value] = match call.operator {
        Operator::MultiHeadAttention => ["key", "value"],
        _ => ["current_key", "current_value"],
    };
    let tokens = shape("query").first().copied();
    let columns = mask(call).and_then(|mask| match mask.shape[..] {
        [rows, width] if Some(rows) == tokens => Some(width),
        [planes, rows, width] if (planes, Some(rows)) == (num_heads, tokens) => Some(width),
        _ => None,
    });
    broken(&[
        ("query is (T, num_heads, head_dim)", is_rows("query", num_heads)),
        ("keys are (T, num_kv_heads, head_dim)", is_rows(key, num_kv_heads)),
        ("values are as keys", shape(key) == shape(value)),
        ("seqstarts is (B + 1)", matches!(*shape("seqstarts"), [len] if len > 0)),
        ("kvstarts is as seqstarts", shape("seqstarts") == shape("kvstarts")),
        ("decoding_batches is a number", is_number("decoding_batches")),
        ("max_seqlen is a number", is_number("max_seqlen")),
        ("max_kvlen is a number", is_number("max_kvlen")),
        ("attn_mask is (T, W) or (num_heads, T, W)", mask(call).is_none() || columns.is_some()),
        ("attn_mask has a size", mask(call).is_none_or(|mask| mask.len().is_some())),
    ])
}

fn indices(call: &Call) -> Vec<&'static str> {
    let values = |name: &str| -> Vec<i64> {
        let operand = get(call, name);
        let len = operand.shape.iter().product();
        operand.values().into_iter().cycle().chain(std::iter::repeat(0)).take(len).collect()
    };
    let (seqstarts, kvstarts) = (values("seqstarts"), values("kvstarts"));
    let number = |name: &str| i128::from(values(name)[0]);
    let from_zero = |starts: &[i64]| starts[0] == 0 && starts.is_sorted();
    let ends_at = |starts: &[i64], rows: usize| starts.last().is_some_and(|&end| end as i128 == rows as i128);
    let bounds = |bound: i128, starts: &[i64]| {
        starts.windows(2).all(|pair| i128::from(pair[1]) - i128::from(pair[0]) <= bound) && bound >= 0
    };
    let rows = |name| get(call, name).shape[0];
    let keys = match call.operator {
        Operator::MultiHeadAttention => ends_at(&kvstarts, rows("key")),
        _ => true,
    };
    let width = mask(call).and_then(|mask| mask.shape.last());
    broken(&[
        ("seqstarts begin with 0 and never fall", from_zero(&seqstarts)),
        ("kvstarts begin with 0 and never fall", from_zero(&kvstarts)),
        ("seqstarts ends with the rows of query", ends_at(&seqstarts, rows("query"))),
        ("kvstarts ends with the rows of key", keys),
        ("max_seqlen is a bound", bounds(number("max_seqlen"), &seqstarts)),
        ("max_kvlen is a bound", bounds(number("max_kvlen"), &kvstarts)),
        ("decoding_batches is 0 or more", number("decoding_batches") >= 0),
        ("attn_mask has a column for each key", width.is_none_or(|&width| !ends_beyond(&kvstarts, width))),
    ])
}

/// Whether the last start is beyond `width`.
fn ends_beyond(starts: &[i64], width: usize) -> bool {
    starts.last().is_some_and(|&end| i128::from(end) > width as i128)
}
