//! Rules that both operators have.

use kvcache_schema::{AttributeSpec, ElementType, TypeCombination};

use crate::case::{NamedInputs, Types};
use crate::oracle::call::{Call, SharedAttributes};
use crate::oracle::refusal::Refusal;
use crate::tensor::Tensor;

/// Each attribute is in its range, also where another one makes it idle.
pub(super) fn attributes<A>(specs: &[AttributeSpec<A>], all: &A, shared: &SharedAttributes) -> Vec<Refusal> {
    let outside = |name: &str, value: i64, expected: String| {
        Refusal::new("attribute_out_of_range", format!("attribute {name} is {value}, expected {expected}"))
    };
    let mut broken: Vec<_> = specs
        .iter()
        .filter(|spec| !spec.contains(spec.value(all)))
        .map(|spec| outside(spec.name, spec.value(all), format!("{} to {:?}, {:?}", spec.min, spec.max, spec.one_of)))
        .collect();
    let &SharedAttributes { num_layer, layer_idx, quant_bit, quant_group, .. } = shared;
    if num_layer >= 1 && layer_idx >= num_layer {
        broken.push(outside("layer_idx", layer_idx, format!("less than num_layer, {num_layer}")));
    }
    if quant_bit == 4 && quant_group >= 1 && quant_group % 2 != 0 {
        broken.push(outside("quant_group", quant_group, "an even number where quant_bit is 4".to_owned()));
    }
    broken
}

/// The combination of types is one of the table, and there is a scale where one is needed.
fn types(types: Types, quant_bit: i64, scale: Option<&Tensor>) -> Option<Refusal> {
    let Types { t1, t2, t3 } = types;
    let legal = |t3| TypeCombination { quant_bit, t1, t2, t3 }.is_legal();
    let only_scale_missing = t3.is_none() && legal(Some(ElementType::Float32));
    if !(legal(t3) || only_scale_missing) {
        let t3 = t3.map_or("absent", ElementType::name);
        let message = format!("illegal types for quant_bit {quant_bit}: T1 {t1}, T2 {t2}, T3 {t3}");
        return Some(Refusal::new("illegal_types", message));
    }
    (quant_bit != 0 && scale.is_none())
        .then(|| Refusal::new("scale_missing", format!("scale is absent, expected one for quant_bit {quant_bit}")))
}

/// The combination of types is in the table, and every tensor has the type it should have.
pub(super) fn all_types<A, I: NamedInputs>(call: &Call<'_, A, I>, quant_bit: i64) -> Vec<Refusal> {
    let of_input = |(name, tensor): (&str, &Tensor)| match name {
        "current_key" => None,
        "current_value" => element(name, tensor, call.types.t1),
        _ => element(name, tensor, ElementType::Int64),
    };
    types(call.types, quant_bit, call.scale)
        .into_iter()
        .chain(call.inputs.named().into_iter().filter_map(of_input))
        .collect()
}

/// Every tensor has one of its ranks; `cache` and a scale that is needed have this one.
pub(super) fn all_ranks<A, I: NamedInputs>(
    call: &Call<'_, A, I>,
    quant_bit: i64,
    of_cache: usize,
    of_input: impl Fn(&str) -> &'static [usize],
) -> Vec<Refusal> {
    let inputs = call.inputs.named().into_iter().filter_map(|(name, tensor)| rank(name, tensor, of_input(name)));
    let state = [rank("cache", call.cache, &[of_cache]), scale_rank(call.scale, call.cache, quant_bit, of_cache)];
    inputs.chain(state.into_iter().flatten()).collect()
}

/// The tensor has the type.
pub(super) fn element(name: &str, tensor: &Tensor, expected: ElementType) -> Option<Refusal> {
    let got = tensor.element();
    (got != expected).then(|| Refusal::new("type_mismatch", format!("{name} is of type {got}, expected {expected}")))
}

/// The tensor has one of these ranks.
pub(super) fn rank(name: &str, tensor: &Tensor, expected: &[usize]) -> Option<Refusal> {
    let shape = tensor.shape();
    let message = || format!("{name} has rank {} (shape {shape:?}), expected {expected:?}", shape.len());
    (!expected.contains(&shape.len())).then(|| Refusal::new("rank_mismatch", message()))
}

/// A scale that is needed has its rank; one without elements, for a cache that has some, stands for none.
fn scale_rank(scale: Option<&Tensor>, cache: &Tensor, quant_bit: i64, expected: usize) -> Option<Refusal> {
    let scale = scale.filter(|_| quant_bit != 0)?;
    if scale.shape().contains(&0) && !cache.shape().contains(&0) {
        let message = format!("scale has no elements, expected some for quant_bit {quant_bit}");
        return Some(Refusal::new("scale_missing", message));
    }
    rank("scale", scale, &[expected])
}

/// The shape is the expected one: an entry for each axis that is not.
pub(super) fn shape(name: &str, got: &[usize], expected: &[usize]) -> Vec<Refusal> {
    let pairs = got.iter().zip(expected).enumerate().filter(|(_, (got, expected))| got != expected);
    let broken = |(axis, (length, expected))| {
        let message = format!("{name} has {length} in axis {axis} (shape {got:?}), expected {expected}");
        Refusal::new("shape_mismatch", message)
    };
    pairs.map(broken).collect()
}

/// The bytes of an output of this type and shape fit in 64 bits.
pub(super) fn size(element: ElementType, shape: &[i128]) -> Option<Refusal> {
    let fits = |bytes: i128| (bytes < 1 << 63).then_some(bytes);
    // An axis of length 0 makes the others not matter.
    let bytes = if shape.contains(&0) {
        Some(0)
    } else {
        let bytes = element.bits() as i128 / 8;
        shape.iter().try_fold(bytes, |bytes, &axis| bytes.checked_mul(axis).and_then(fits))
    };
    let message = format!("the size of key (shape {shape:?}) does not fit in 64 bits");
    bytes.is_none().then(|| Refusal::new("size_overflow", message))
}

/// Starts begin with 0 and never decrease.
pub(super) fn rising(name: &str, starts: &[i64]) -> Vec<Refusal> {
    let first = (starts[0] != 0).then(|| format!("{name} begins with {} at batch 0", starts[0]));
    let first = first.map(|message| Refusal::new("starts_not_zero", message));
    let decreases = starts.windows(2).enumerate().filter(|(_, pair)| pair[1] < pair[0]).map(|(b, pair)| {
        let message = format!("{name} decreases from {} to {} at batch {b}", pair[0], pair[1]);
        Refusal::new("starts_decrease", message)
    });
    first.into_iter().chain(decreases).collect()
}

/// Starts end with the rows that they are of.
pub(super) fn total(name: &str, starts: &[i64], rows: usize, of: &str) -> Option<Refusal> {
    let last = starts[starts.len() - 1];
    let message = || format!("{name} ends with {last}, expected {rows}, {of}");
    (usize::try_from(last) != Ok(rows)).then(|| Refusal::new("starts_total", message()))
}

/// An upper bound is at least the longest length between starts.
pub(super) fn bound(name: &str, got: i64, starts: &[i64]) -> Option<Refusal> {
    let least = starts.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).max().unwrap_or(0);
    let message = || format!("{name} is {got}, expected at least {least}");
    (got < least).then(|| Refusal::new("max_too_small", message()))
}

/// Heads have whole groups.
pub(super) fn whole_groups(head_dim: usize, quant_group: usize) -> Option<Refusal> {
    let message = || format!("head_dim is {head_dim}, expected a multiple of quant_group, {quant_group}");
    (!head_dim.is_multiple_of(quant_group)).then(|| Refusal::new("head_dim_not_divisible", message()))
}
