//! The rules of a legal call of static batching, in stages: those of a stage can be asked only where those before
//! hold.

use kvcache_schema::{StaticAttributes, StaticCacheDims, StaticCacheLayout};

use crate::oracle::call::{Call, Inputs, number};
use crate::oracle::refusal::Refusal;
use crate::oracle::shared_rules as shared;
use crate::static_batching::StepInputs;

type StaticCall<'a> = Call<'a, StaticAttributes, StepInputs>;

/// The broken rules of the first stage that has any.
pub(super) fn broken_rules(call: &StaticCall<'_>) -> Vec<Refusal> {
    let stages = [attributes, types, ranks, shapes, positions, sizes];
    stages.iter().map(|stage| stage(call)).find(|broken| !broken.is_empty()).unwrap_or_default()
}

fn attributes(call: &StaticCall<'_>) -> Vec<Refusal> {
    shared::attributes(&StaticAttributes::SPEC, call.attributes, &StepInputs::shared(call.attributes))
}

fn types(call: &StaticCall<'_>) -> Vec<Refusal> {
    shared::all_types(call, call.attributes.quant_bit)
}

/// Every tensor has its rank; `start_pos` has rank 0 or 1.
fn ranks(call: &StaticCall<'_>) -> Vec<Refusal> {
    shared::all_ranks(call, call.attributes.quant_bit, 6, |name| match name {
        "start_pos" => &[0, 1],
        _ => &[4],
    })
}

/// The lengths of the axes of a cache whose rank was checked.
fn dims(call: &StaticCall<'_>) -> (StaticCacheLayout, StaticCacheDims) {
    let layout = StaticCacheLayout::from_code(call.attributes.cache_layout);
    match (layout, call.cache.shape()) {
        (Some(layout), &[a, b, c, d, e, f]) => (layout, layout.dims([a, b, c, d, e, f])),
        _ => unreachable!("attributes and ranks were checked"),
    }
}

/// B, S, H, Dh, L, MaxB and MaxS agree across the tensors.
fn shapes(call: &StaticCall<'_>) -> Vec<Refusal> {
    let [batch, _, num_heads, head_dim] = *call.inputs.current_key.shape() else {
        unreachable!("the ranks were checked");
    };
    let mut broken = shared::shape("current_value", call.inputs.current_value.shape(), call.inputs.current_key.shape());
    broken.extend(shared::shape("start_pos", call.inputs.start_pos.shape(), &[1]));
    let (layout, dims) = dims(call);
    let num_layer = usize::try_from(call.attributes.num_layer).unwrap_or(usize::MAX);
    let dims = StaticCacheDims { num_layer, num_heads, inner: head_dim, ..dims };
    broken.extend(shared::shape("cache", call.cache.shape(), &layout.shape(dims)));
    if let Some(scale) = call.scale.filter(|_| call.attributes.quant_bit != 0) {
        let group = usize::try_from(call.attributes.quant_group).unwrap_or(usize::MAX);
        let dims = StaticCacheDims { inner: head_dim / group, ..dims };
        broken.extend(shared::shape("scale", scale.shape(), &layout.shape(dims)));
        broken.extend(shared::whole_groups(head_dim, group));
    }
    if batch > dims.max_b {
        let message = format!("current_key has {batch} sequences, expected at most MaxB, {}", dims.max_b);
        broken.push(Refusal::new("batch_too_large", message));
    }
    broken
}

/// `start_pos` is at least 0, and `start_pos` + S at most MaxS.
fn positions(call: &StaticCall<'_>) -> Vec<Refusal> {
    let (start_pos, seqlen) = (number(&call.inputs.start_pos), call.inputs.current_key.shape()[1]);
    let max_s = dims(call).1.max_s;
    if start_pos < 0 {
        return vec![Refusal::new("start_pos_negative", format!("start_pos is {start_pos}, expected at least 0"))];
    }
    if i128::from(start_pos) + seqlen as i128 > max_s as i128 {
        let message = format!("start_pos is {start_pos} with {seqlen} tokens, expected an end at MaxS, {max_s}");
        return vec![Refusal::new("position_range", message)];
    }
    Vec::new()
}

/// The bytes of an output fit in 64 bits.
fn sizes(call: &StaticCall<'_>) -> Vec<Refusal> {
    let [batch, seqlen, num_heads, head_dim] = *call.inputs.current_key.shape() else {
        unreachable!("the ranks were checked");
    };
    let positions = i128::from(number(&call.inputs.start_pos)) + seqlen as i128;
    let num_repeat = i128::from(call.attributes.num_repeat);
    let shape = [batch as i128, positions, num_heads as i128, num_repeat, head_dim as i128];
    shared::size(call.inputs.current_key.element(), &shape).into_iter().collect()
}
