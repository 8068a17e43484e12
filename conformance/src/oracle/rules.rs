//! The rules of a legal call of dynamic batching, in stages: those of a stage can be asked only where those before
//! hold.

use std::collections::BTreeMap;

use kvcache_schema::{Attributes, CacheDims, CacheLayout};

use crate::case::StepInputs;
use crate::oracle::batch::Batch;
use crate::oracle::call::{Call, Inputs};
use crate::oracle::refusal::Refusal;
use crate::oracle::shared_rules as shared;

type DynamicCall<'a> = Call<'a, Attributes, StepInputs>;

/// The broken rules of the first stage that has any.
pub(super) fn broken_rules(call: &DynamicCall<'_>) -> Vec<Refusal> {
    let before_indices = [attributes, types, ranks, shapes];
    if let Some(broken) = before_indices.iter().map(|stage| stage(call)).find(|broken| !broken.is_empty()) {
        return broken;
    }
    let batch = Batch::new(call);
    let stages = [starts, lengths, slots, conflicts, sizes];
    stages.iter().map(|stage| stage(call, &batch)).find(|broken| !broken.is_empty()).unwrap_or_default()
}

fn attributes(call: &DynamicCall<'_>) -> Vec<Refusal> {
    shared::attributes(&Attributes::SPEC, call.attributes, &StepInputs::shared(call.attributes))
}

fn types(call: &DynamicCall<'_>) -> Vec<Refusal> {
    shared::all_types(call, call.attributes.quant_bit)
}

/// Every tensor has its rank; `max_seqlen` and `max_kvlen` have rank 0 or 1.
fn ranks(call: &DynamicCall<'_>) -> Vec<Refusal> {
    let paged = call.attributes.cache_mode == 1;
    let is_legacy = paged && call.inputs.cachestarts.shape().len() == 1;
    let message = "cachestarts has rank 1 in paged mode: a table of exports from before pages existed";
    let legacy = is_legacy.then(|| Refusal::new("legacy_page_table", message));
    let others = shared::all_ranks(call, call.attributes.quant_bit, 5, |name| match name {
        "current_key" | "current_value" => &[3],
        "cachestarts" if paged && !is_legacy => &[2],
        "max_seqlen" | "max_kvlen" => &[0, 1],
        _ => &[1],
    });
    legacy.into_iter().chain(others).collect()
}

/// B, T, H, Dh, L and MaxT agree across the tensors.
fn shapes(call: &DynamicCall<'_>) -> Vec<Refusal> {
    let StepInputs { current_key, current_value, seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen } =
        call.inputs;
    let Some(batch) = seqstarts.shape()[0].checked_sub(1) else {
        return vec![Refusal::new("shape_mismatch", "seqstarts has 0 entries, expected one more than sequences")];
    };
    let mut broken = shared::shape("current_value", current_value.shape(), current_key.shape());
    broken.extend(shared::shape("kvstarts", kvstarts.shape(), &[batch + 1]));
    broken.extend(shared::shape("cachestarts", &cachestarts.shape()[..1], &[batch]));
    broken.extend(shared::shape("start_pos", start_pos.shape(), &[batch]));
    broken.extend(shared::shape("max_seqlen", max_seqlen.shape(), &[1]));
    broken.extend(shared::shape("max_kvlen", max_kvlen.shape(), &[1]));

    let Attributes { num_layer, quant_bit, quant_group, cache_layout, .. } = *call.attributes;
    let (&[_, num_heads, head_dim], &[a, b, c, d, e]) = (current_key.shape(), call.cache.shape()) else {
        unreachable!("the ranks were checked");
    };
    let Some(layout) = CacheLayout::from_code(cache_layout) else { unreachable!("the attributes were checked") };
    let num_layer = usize::try_from(num_layer).unwrap_or(usize::MAX);
    let dims = CacheDims { num_layer, num_heads, inner: head_dim, ..layout.dims([a, b, c, d, e]) };
    broken.extend(shared::shape("cache", call.cache.shape(), &layout.shape(dims)));
    if let Some(scale) = call.scale.filter(|_| quant_bit != 0) {
        let group = usize::try_from(quant_group).unwrap_or(usize::MAX);
        let dims = CacheDims { inner: head_dim / group, ..dims };
        broken.extend(shared::shape("scale", scale.shape(), &layout.shape(dims)));
        broken.extend(shared::whole_groups(head_dim, group));
    }
    broken
}

/// `seqstarts` and `kvstarts` begin with 0 and never decrease; `seqstarts` ends with the tokens of `current_key`.
fn starts(call: &DynamicCall<'_>, batch: &Batch) -> Vec<Refusal> {
    let mut broken = shared::rising("seqstarts", &batch.seqstarts);
    broken.extend(shared::rising("kvstarts", &batch.kvstarts));
    let tokens = call.inputs.current_key.shape()[0];
    broken.extend(shared::total("seqstarts", &batch.seqstarts, tokens, "the tokens of current_key"));
    broken
}

/// kvlen is start_pos + seqlen; `max_seqlen` and `max_kvlen` are upper bounds.
fn lengths(_call: &DynamicCall<'_>, batch: &Batch) -> Vec<Refusal> {
    let mut broken = Vec::new();
    for b in 0..batch.len() {
        let (start_pos, seqlen, kvlen) = (batch.start_pos[b], batch.seqlen(b), batch.kvlen(b));
        if start_pos < 0 {
            broken.push(Refusal::new("start_pos_negative", format!("start_pos is {start_pos} at batch {b}")));
        } else if i128::from(kvlen) != i128::from(start_pos) + i128::from(seqlen) {
            let message = format!("kvstarts gives batch {b} kvlen {kvlen}, start_pos is {start_pos}, seqlen {seqlen}");
            broken.push(Refusal::new("kvlen_mismatch", message));
        }
    }
    broken.extend(shared::bound("max_seqlen", batch.max_seqlen, &batch.seqstarts));
    broken.extend(shared::bound("max_kvlen", batch.max_kvlen, &batch.kvstarts));
    broken
}

/// Every token of the call has a slot in [0, MaxT).
fn slots(_call: &DynamicCall<'_>, batch: &Batch) -> Vec<Refusal> {
    let max_t = batch.max_t;
    let inside = |first: i64, len: i64| first >= 0 && i128::from(first) + i128::from(len) <= max_t as i128;
    let mut broken = Vec::new();
    for b in 0..batch.len() {
        let kvlen = batch.kvlen(b);
        if !batch.paged {
            let first = batch.cachestarts[b];
            if !inside(first, kvlen) {
                let message = format!("cachestarts is {first} at batch {b} with kvlen {kvlen}, MaxT is {max_t}");
                broken.push(Refusal::new("cache_range", message));
            }
            continue;
        }
        let pages = (i128::from(kvlen) + i128::from(batch.page_size) - 1) / i128::from(batch.page_size);
        if pages > batch.max_p as i128 {
            let message = format!("cachestarts has {} pages for batch {b}, expected {pages}", batch.max_p);
            broken.push(Refusal::new("too_many_pages", message));
            continue;
        }
        for p in 0..pages as usize {
            let (first, used) = (batch.cachestarts[b * batch.max_p + p], batch.slots_used(b, p));
            if !inside(first, used) {
                let message = format!("cachestarts is {first} at batch {b}, page {p}, of which {used} slots are used");
                broken.push(Refusal::new("page_range", message));
            }
        }
    }
    broken
}

/// No slot is written by two tokens: an entry for each pair of sequences that meet.
fn conflicts(_call: &DynamicCall<'_>, batch: &Batch) -> Vec<Refusal> {
    let mut writers = BTreeMap::new();
    let mut meetings = BTreeMap::new();
    for b in 0..batch.len() {
        for t in 0..batch.seqlen(b) {
            let slot = batch.slot(b, batch.start_pos[b] + t);
            if let Some(writer) = writers.insert(slot, b) {
                meetings.entry((writer, b)).or_insert(slot);
            }
        }
    }
    let message =
        |((writer, b), slot)| format!("cachestarts makes batch {writer} and batch {b} both write slot {slot}");
    meetings.into_iter().map(|meeting| Refusal::new("write_conflict", message(meeting))).collect()
}

/// The bytes of an output fit in 64 bits.
fn sizes(call: &DynamicCall<'_>, batch: &Batch) -> Vec<Refusal> {
    let [_, num_heads, head_dim] = *call.inputs.current_key.shape() else { unreachable!("the ranks were checked") };
    let num_repeat = call.attributes.num_repeat;
    let tokens = batch.kvstarts[batch.len()];
    let shape = [tokens.into(), num_heads as i128, num_repeat.into(), head_dim as i128];
    shared::size(call.inputs.current_key.element(), &shape).into_iter().collect()
}
