//! The rules of a legal call, in stages: a stage's rules can be asked only where the stages before it hold. No line is
//! shared with the operators' own checks.

mod broken;

use std::collections::HashSet;

use kvcache_schema::{Attributes, CacheDims, CacheLayout, StaticAttributes, StaticCacheDims, StaticCacheLayout};

use self::broken::{Broken, attends, length};
use crate::case::{Call, Operator};

/// The kinds of errors that only the attention operators have.
pub const ATTENTION_KINDS: [&str; 3] = ["attention_type", "mask_too_small", "decoding_batches_negative"];

/// The kinds of errors that a call of either `KeyValueCache` can be refused with; the attention operators have them,
/// too.
#[rustfmt::skip]
pub const KINDS: [&str; 21] = [
    "attribute_out_of_range", "illegal_types", "scale_missing", "type_mismatch", "legacy_page_table", "rank_mismatch",
    "shape_mismatch", "head_dim_not_divisible", "batch_too_large", "starts_not_zero", "starts_decrease", "starts_total",
    "start_pos_negative", "kvlen_mismatch", "max_too_small", "cache_range", "too_many_pages", "page_range",
    "write_conflict", "position_range", "size_overflow",
];

/// The kinds of error that a call breaks the rules of, all of one stage; at least one.
pub type Kinds = Vec<&'static str>;

/// Whether a call is legal.
///
/// # Errors
/// The kinds of the errors that it must be refused with, any of them; of one stage, without duplicates.
pub fn legal(call: &Call) -> Result<(), Kinds> {
    let legal = match call.operator {
        Operator::KeyValueCache | Operator::MultiHeadCacheAttention => dynamic_batching(call),
        Operator::MultiHeadAttention => packed(call),
        Operator::StaticKeyValueCache => static_batching(call),
    };
    legal.map_err(|mut kinds| {
        let mut seen = HashSet::new();
        kinds.retain(|kind| seen.insert(*kind));
        kinds
    })
}

fn packed(call: &Call) -> Result<(), Kinds> {
    let mut broken = Broken::default();
    broken.attention_attributes(call);
    broken.stage()?;
    broken.types(call);
    broken.stage()?;
    broken.ragged_ranks(call, 0);
    broken.stage()?;

    let shape = |name: &str| call.inputs[name].shape();
    let Some(batch) = shape("seqstarts")[0].checked_sub(1) else { return Err(vec!["shape_mismatch"]) };
    broken.shape(shape("kvstarts"), shape("seqstarts"));
    broken.shape(shape("value"), shape("key"));
    broken.shape(shape("max_seqlen"), &[1]);
    broken.shape(shape("max_kvlen"), &[1]);
    broken.attention_shapes(call, shape("query")[0], shape("key"));
    broken.stage()?;

    let starts = [("seqstarts", "query"), ("kvstarts", "key")].map(|(name, rows)| (call.inputs[name].indices(), rows));
    for (starts, rows) in &starts {
        broken.rising(starts);
        broken.unless(usize::try_from(starts[batch]) == Ok(shape(rows)[0]), "starts_total");
    }
    broken.stage()?;
    for (bound, (starts, _)) in ["max_seqlen", "max_kvlen"].into_iter().zip(&starts) {
        broken.bound(call.inputs[bound].indices()[0], starts);
    }
    broken.attention_values(call, starts[1].0[batch]);
    broken.stage()
}

fn dynamic_batching(call: &Call) -> Result<(), Kinds> {
    let mut broken = Broken::default();
    broken.attributes(&Attributes::SPEC, call);
    if attends(call) {
        broken.attention_attributes(call);
    }
    broken.stage()?;
    broken.combination(call);
    broken.types(call);
    broken.stage()?;

    let input = |name: &str| &call.inputs[name];
    let paged = call.attributes["cache_mode"] == 1;
    let is_legacy = paged && input("cachestarts").shape().len() == 1;
    broken.unless(!is_legacy, "legacy_page_table");
    broken.ragged_ranks(call, if paged && !is_legacy { 2 } else { 1 });
    broken.state_ranks(call, 5);
    broken.stage()?;

    // B, T, H, Dh, L and MaxT agree across the tensors.
    let entries = input("seqstarts").shape()[0];
    let Some(batch) = entries.checked_sub(1) else { return Err(vec!["shape_mismatch"]) };
    let current = input("current_key").shape();
    broken.shape(input("current_value").shape(), current);
    broken.shape(input("kvstarts").shape(), &[entries]);
    broken.shape(&input("cachestarts").shape()[..1], &[batch]);
    broken.shape(input("start_pos").shape(), &[batch]);
    broken.shape(input("max_seqlen").shape(), &[1]);
    broken.shape(input("max_kvlen").shape(), &[1]);
    let (Some(layout), &[tokens, num_heads, head_dim], &[l0, l1, l2, l3, l4]) =
        (CacheLayout::from_code(call.attributes["cache_layout"]), current, call.cache().shape())
    else {
        unreachable!("attributes and ranks were checked");
    };
    let (dims, num_layer) = (layout.dims([l0, l1, l2, l3, l4]), length(call, "num_layer"));
    let shape = |inner| layout.shape(CacheDims { num_layer, num_heads, inner, ..dims }).to_vec();
    broken.state_shapes(call, num_heads, head_dim, shape);
    if attends(call) {
        broken.attention_shapes(call, tokens, current);
    }
    broken.stage()?;

    let [seqstarts, kvstarts, start_pos] = ["seqstarts", "kvstarts", "start_pos"].map(|name| input(name).indices());
    broken.rising(&seqstarts);
    broken.rising(&kvstarts);
    broken.unless(usize::try_from(seqstarts[batch]) == Ok(tokens), "starts_total");
    broken.stage()?;
    let sequences: Vec<_> = (0..batch)
        .map(|b| (start_pos[b], seqstarts[b + 1].wrapping_sub(seqstarts[b]), kvstarts[b + 1].wrapping_sub(kvstarts[b])))
        .collect();
    for &(start_pos, seqlen, kvlen) in &sequences {
        broken.unless(start_pos >= 0, "start_pos_negative");
        let expected = i128::from(start_pos) + i128::from(seqlen);
        broken.unless(start_pos < 0 || i128::from(kvlen) == expected, "kvlen_mismatch");
    }
    let number = |name: &str| input(name).indices()[0];
    broken.bound(number("max_seqlen"), &seqstarts);
    broken.bound(number("max_kvlen"), &kvstarts);
    if attends(call) {
        broken.attention_values(call, kvstarts[batch]);
    }
    broken.stage()?;

    // Every token has a slot in [0, MaxT), counted from its sequence's start or found through its page.
    let cachestarts = input("cachestarts").indices();
    let (columns, page_size) = match paged {
        true => (input("cachestarts").shape()[1], call.attributes["page_size"]),
        false => (1, i64::MAX),
    };
    let row = |b: usize| &cachestarts[b * columns..][..columns];
    for (b, &(_, _, kvlen)) in sequences.iter().enumerate() {
        let (kvlen, size) = (i128::from(kvlen), i128::from(page_size));
        let inside = |(page, &first): (usize, &i64)| {
            let len = if paged { size.min(kvlen - size * page as i128) } else { kvlen };
            first >= 0 && i128::from(first) + len <= dims.max_t as i128
        };
        let pages = if paged { (kvlen + size - 1) / size } else { 1 };
        broken.unless(pages <= columns as i128, "too_many_pages");
        if pages <= columns as i128 {
            let kind = if paged { "page_range" } else { "cache_range" };
            broken.unless(row(b)[..pages as usize].iter().enumerate().all(inside), kind);
        }
    }
    broken.stage()?;
    // No slot is written by two tokens.
    let slot = |b: usize, t: i64| row(b)[(t / page_size) as usize] + t % page_size;
    let mut written = HashSet::new();
    let stored = |(b, &(start_pos, seqlen, _)): (usize, &(i64, i64, i64))| {
        (start_pos..start_pos + seqlen).map(move |t| slot(b, t)).collect::<Vec<_>>()
    };
    broken.unless(sequences.iter().enumerate().flat_map(stored).all(|slot| written.insert(slot)), "write_conflict");
    broken.stage()?;
    // The output of attention has the size of `query`.
    if let Some(&num_repeat) = call.attributes.get("num_repeat") {
        broken.size(call, &[kvstarts[batch].into(), num_heads as i128, num_repeat.into(), head_dim as i128]);
    }
    broken.stage()
}

fn static_batching(call: &Call) -> Result<(), Kinds> {
    let mut broken = Broken::default();
    broken.attributes(&StaticAttributes::SPEC, call);
    broken.stage()?;
    broken.combination(call);
    broken.types(call);
    broken.stage()?;
    for (&name, tensor) in &call.inputs {
        broken.rank(tensor, if name == "start_pos" { &[0, 1] } else { &[4] });
    }
    broken.state_ranks(call, 6);
    broken.stage()?;

    // B, S, H, Dh, L, MaxB and MaxS agree across the tensors.
    let (current, start_pos) = (call.inputs["current_key"].shape(), &call.inputs["start_pos"]);
    let (Some(layout), &[batch, seqlen, num_heads, head_dim], &[l0, l1, l2, l3, l4, l5]) =
        (StaticCacheLayout::from_code(call.attributes["cache_layout"]), current, call.cache().shape())
    else {
        unreachable!("attributes and ranks were checked");
    };
    broken.shape(call.inputs["current_value"].shape(), current);
    broken.shape(start_pos.shape(), &[1]);
    let (dims, num_layer) = (layout.dims([l0, l1, l2, l3, l4, l5]), length(call, "num_layer"));
    let shape = |inner| layout.shape(StaticCacheDims { num_layer, num_heads, inner, ..dims }).to_vec();
    broken.state_shapes(call, num_heads, head_dim, shape);
    broken.unless(batch <= dims.max_b, "batch_too_large");
    broken.stage()?;

    let start_pos = start_pos.indices()[0];
    let end = i128::from(start_pos) + seqlen as i128;
    broken.unless(start_pos >= 0, "start_pos_negative");
    broken.unless(start_pos < 0 || end <= dims.max_s as i128, "position_range");
    broken.stage()?;
    let num_repeat = i128::from(call.attributes["num_repeat"]);
    broken.size(call, &[batch as i128, end, num_heads as i128, num_repeat, head_dim as i128]);
    broken.stage()
}
