//! The rules of a legal call of either `KeyValueCache`, in stages: those of a stage can be asked only where those
//! before hold. A broken rule is told by the kind of error that the call is refused with.

use std::collections::HashSet;

use kvcache_schema::{
    AttributeSpec, Attributes, CacheDims, CacheLayout, ElementType, STATIC_SCALES, StaticAttributes, StaticCacheDims,
    StaticCacheLayout, TypeCombination,
};

use crate::case::{NamedInputs, StepInputs, Types};
use crate::oracle::call::{Call, Inputs, SharedAttributes, number};
use crate::oracle::decisions::Slots;
use crate::oracle::dynamic::Batch;
use crate::static_batching;
use crate::tensor::Tensor;

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

#[derive(Default)]
pub(super) struct Broken(Vec<&'static str>);

/// The stages so far hold, or these rules of one are broken.
pub(super) type Legal = Result<(), Vec<&'static str>>;

impl Broken {
    pub(super) fn unless(&mut self, holds: bool, kind: &'static str) {
        if !holds {
            self.0.push(kind);
        }
    }

    pub(super) fn stage(&mut self) -> Legal {
        if self.0.is_empty() { Ok(()) } else { Err(std::mem::take(&mut self.0)) }
    }

    /// Each attribute is in its range, also where another one makes it idle.
    pub(super) fn attributes<A>(&mut self, specs: &[AttributeSpec<A>], all: &A) {
        specs.iter().for_each(|spec| self.unless(spec.contains(spec.value(all)), "attribute_out_of_range"));
    }

    /// Those that depend on another, too.
    fn all_attributes<A>(&mut self, specs: &[AttributeSpec<A>], all: &A, shared: &SharedAttributes) {
        self.attributes(specs, all);
        let &SharedAttributes { num_layer, layer_idx, quant_bit, quant_type, quant_group, .. } = shared;
        self.unless(num_layer < 1 || layer_idx < num_layer, "attribute_out_of_range");
        self.unless(quant_bit != 4 || quant_group < 1 || quant_group % 2 == 0, "attribute_out_of_range");
        self.unless(quant_bit == 8 || !matches!(quant_type, 1 | STATIC_SCALES), "attribute_out_of_range");
    }

    /// The combination of types is in the table, there is a scale where one is needed, and every tensor has its type.
    fn types<A, I: NamedInputs>(&mut self, call: &Call<'_, A, I>, quant_bit: i64, quant_type: i64) {
        let Types { t1, t2, t3 } = call.types;
        let is_legal = |t3| {
            let row = TypeCombination { quant_bit, t1, t2, t3 };
            row.is_legal() && row.quant_types().contains(&quant_type)
        };
        let only_scale_missing = t3.is_none() && is_legal(Some(ElementType::Float32));
        if is_legal(t3) || only_scale_missing {
            self.unless(quant_bit == 0 || call.scale.is_some(), "scale_missing");
        } else {
            self.unless(false, "illegal_types");
        }
        for (name, tensor) in call.inputs.named().into_iter().filter(|(name, _)| *name != "current_key") {
            self.element(tensor, if name == "current_value" { t1 } else { ElementType::Int64 });
        }
    }

    pub(super) fn element(&mut self, tensor: &Tensor, expected: ElementType) {
        self.unless(tensor.element() == expected, "type_mismatch");
    }

    pub(super) fn rank(&mut self, tensor: &Tensor, expected: &[usize]) {
        self.unless(expected.contains(&tensor.shape().len()), "rank_mismatch");
    }

    /// A cache, and a scale that is needed, have this rank, static scales 3; a scale without elements, for a cache that
    /// has some, stands for none.
    fn state_ranks<A, I: Inputs<A>>(&mut self, call: &Call<'_, A, I>, rank: usize) {
        let SharedAttributes { quant_bit, quant_type, .. } = I::shared(call.attributes);
        self.rank(call.cache, &[rank]);
        let Some(scale) = call.scale.filter(|_| quant_bit != 0) else { return };
        if scale.shape().contains(&0) && !call.cache.shape().contains(&0) {
            self.unless(false, "scale_missing");
        } else {
            self.rank(scale, &[if quant_type == STATIC_SCALES { 3 } else { rank }]);
        }
    }

    pub(super) fn shape(&mut self, got: &[usize], expected: &[usize]) {
        self.unless(got.iter().zip(expected).all(|(got, expected)| got == expected), "shape_mismatch");
    }

    /// `cache`, and a scale that is needed, have the shapes that `shape` gives for heads of so many elements.
    fn state_shapes<A, I: Inputs<A>>(
        &mut self,
        call: &Call<'_, A, I>,
        head_dim: usize,
        shape: impl Fn(usize) -> Vec<usize>,
    ) {
        let SharedAttributes { quant_bit, quant_type, quant_group, num_layer, .. } = I::shared(call.attributes);
        self.shape(call.cache.shape(), &shape(head_dim));
        if let Some(scale) = call.scale.filter(|_| quant_bit != 0) {
            if quant_type == STATIC_SCALES {
                let num_layer = usize::try_from(num_layer).unwrap_or(usize::MAX);
                let full =
                    [num_layer, 2, call.inputs.current()[0].shape().iter().rev().nth(1).copied().unwrap_or_default()];
                let broadcast = |(&got, full)| if got == 1 { 1 } else { full };
                let expected: Vec<_> = scale.shape().iter().zip(full).map(broadcast).collect();
                return self.shape(scale.shape(), &expected);
            }
            let group = usize::try_from(quant_group).unwrap_or(usize::MAX);
            self.shape(scale.shape(), &shape(head_dim / group));
            self.unless(head_dim.is_multiple_of(group), "head_dim_not_divisible");
        }
    }

    /// Starts begin with 0 and never decrease.
    pub(super) fn rising(&mut self, starts: &[i64]) {
        self.unless(starts[0] == 0, "starts_not_zero");
        self.unless(starts.is_sorted(), "starts_decrease");
    }

    /// Starts end with the rows that they are of.
    pub(super) fn total(&mut self, starts: &[i64], rows: usize) {
        self.unless(usize::try_from(starts[starts.len() - 1]) == Ok(rows), "starts_total");
    }

    /// An upper bound is at least the longest length between starts.
    pub(super) fn bound(&mut self, got: i64, starts: &[i64]) {
        let longest = starts.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).max().unwrap_or(0);
        self.unless(got >= longest, "max_too_small");
    }

    /// The bytes of an output of this type and shape fit in 64 bits. An axis of length 0 makes the others not matter.
    fn size(&mut self, element: ElementType, shape: &[i128]) {
        let times = |bytes: i128, axis: &i128| bytes.checked_mul(*axis).filter(|&bytes| bytes < 1 << 63);
        let bytes = shape.iter().try_fold(element.bits() as i128 / 8, times);
        self.unless(shape.contains(&0) || bytes.is_some(), "size_overflow");
    }
}

pub(super) fn dynamic_batching(call: &Call<'_, Attributes, StepInputs>) -> Legal {
    let (mut broken, attributes, inputs) = (Broken::default(), call.attributes, call.inputs);
    broken.all_attributes(&Attributes::SPEC, attributes, &StepInputs::shared(attributes));
    broken.stage()?;
    broken.types(call, attributes.quant_bit, attributes.quant_type);
    broken.stage()?;

    let paged = attributes.cache_mode == 1;
    let is_legacy = paged && inputs.cachestarts.shape().len() == 1;
    broken.unless(!is_legacy, "legacy_page_table");
    for (name, tensor) in inputs.named() {
        let ranks: &[usize] = match name {
            "current_key" | "current_value" => &[3],
            "cachestarts" if paged && !is_legacy => &[2],
            "max_seqlen" | "max_kvlen" => &[0, 1],
            _ => &[1],
        };
        broken.rank(tensor, ranks);
    }
    broken.state_ranks(call, 5);
    broken.stage()?;

    // B, T, H, Dh, L and MaxT agree across the tensors.
    let entries = inputs.seqstarts.shape()[0];
    let Some(b) = entries.checked_sub(1) else { return Err(vec!["shape_mismatch"]) };
    let current = inputs.current_key.shape();
    broken.shape(inputs.current_value.shape(), current);
    broken.shape(inputs.kvstarts.shape(), &[entries]);
    broken.shape(&inputs.cachestarts.shape()[..1], &[b]);
    broken.shape(inputs.start_pos.shape(), &[b]);
    broken.shape(inputs.max_seqlen.shape(), &[1]);
    broken.shape(inputs.max_kvlen.shape(), &[1]);
    let (Some(layout), &[tokens, num_heads, head_dim], &[l0, l1, l2, l3, l4]) =
        (CacheLayout::from_code(attributes.cache_layout), current, call.cache.shape())
    else {
        unreachable!("attributes and ranks were checked");
    };
    let num_layer = usize::try_from(attributes.num_layer).unwrap_or(usize::MAX);
    let dims = layout.dims([l0, l1, l2, l3, l4]);
    let shape = |inner| layout.shape(CacheDims { num_layer, num_heads, inner, ..dims }).to_vec();
    broken.state_shapes(call, head_dim, shape);
    broken.stage()?;

    let batch = &Batch::new(call);
    broken.rising(&batch.seqstarts);
    broken.rising(&batch.kvstarts);
    broken.total(&batch.seqstarts, tokens);
    broken.stage()?;
    for b in 0..batch.len() {
        let start_pos = batch.start_pos[b];
        broken.unless(start_pos >= 0, "start_pos_negative");
        let kvlen = i128::from(start_pos) + i128::from(batch.seqlen(b));
        broken.unless(start_pos < 0 || i128::from(batch.kvlen(b)) == kvlen, "kvlen_mismatch");
    }
    broken.bound(batch.max_seqlen, &batch.seqstarts);
    broken.bound(batch.max_kvlen, &batch.kvstarts);
    broken.stage()?;
    (0..batch.len()).for_each(|b| slots(&mut broken, batch, b));
    broken.stage()?;
    // No slot is written by two tokens.
    let mut written = HashSet::new();
    let mut stored = (0..batch.len()).flat_map(|b| (0..batch.seqlen(b)).map(move |t| (b, batch.start_pos[b] + t)));
    broken.unless(stored.all(|(b, t)| written.insert(batch.slot(Slots::ByMode, b, t))), "write_conflict");
    broken.stage()?;
    let num_repeat = i128::from(attributes.num_repeat);
    let shape = [batch.kvstarts[batch.len()].into(), num_heads as i128, num_repeat, head_dim as i128];
    broken.size(inputs.current_key.element(), &shape);
    broken.stage()
}

/// Every token of a sequence has a slot in [0, MaxT).
fn slots(broken: &mut Broken, batch: &Batch, b: usize) {
    let (kvlen, size) = (i128::from(batch.kvlen(b)), i128::from(batch.page_size));
    let inside = |first: i64, len: i128| first >= 0 && i128::from(first) + len <= batch.max_t as i128;
    if !batch.paged {
        broken.unless(inside(batch.cachestarts[b], kvlen), "cache_range");
        return;
    }
    let pages = (kvlen + size - 1) / size;
    broken.unless(pages <= batch.max_p as i128, "too_many_pages");
    if pages <= batch.max_p as i128 {
        let row = &batch.cachestarts[b * batch.max_p..][..pages as usize];
        let of_page = |(p, &first): (usize, &i64)| inside(first, size.min(kvlen - size * p as i128));
        broken.unless(row.iter().enumerate().all(of_page), "page_range");
    }
}

pub(super) fn static_batching(call: &Call<'_, StaticAttributes, static_batching::StepInputs>) -> Legal {
    let (mut broken, attributes, inputs) = (Broken::default(), call.attributes, call.inputs);
    broken.all_attributes(&StaticAttributes::SPEC, attributes, &static_batching::StepInputs::shared(attributes));
    broken.stage()?;
    broken.types(call, attributes.quant_bit, attributes.quant_type);
    broken.stage()?;
    for (name, tensor) in inputs.named() {
        broken.rank(tensor, if name == "start_pos" { &[0, 1] } else { &[4] });
    }
    broken.state_ranks(call, 6);
    broken.stage()?;

    // B, S, H, Dh, L, MaxB and MaxS agree across the tensors.
    let current = inputs.current_key.shape();
    let (Some(layout), &[b, seqlen, num_heads, head_dim], &[l0, l1, l2, l3, l4, l5]) =
        (StaticCacheLayout::from_code(attributes.cache_layout), current, call.cache.shape())
    else {
        unreachable!("attributes and ranks were checked");
    };
    broken.shape(inputs.current_value.shape(), current);
    broken.shape(inputs.start_pos.shape(), &[1]);
    let num_layer = usize::try_from(attributes.num_layer).unwrap_or(usize::MAX);
    let dims = layout.dims([l0, l1, l2, l3, l4, l5]);
    let shape = |inner| layout.shape(StaticCacheDims { num_layer, num_heads, inner, ..dims }).to_vec();
    broken.state_shapes(call, head_dim, shape);
    broken.unless(b <= dims.max_b, "batch_too_large");
    broken.stage()?;

    let start_pos = number(&inputs.start_pos);
    let end = i128::from(start_pos) + seqlen as i128;
    broken.unless(start_pos >= 0, "start_pos_negative");
    broken.unless(start_pos < 0 || end <= dims.max_s as i128, "position_range");
    broken.stage()?;
    let num_repeat = i128::from(attributes.num_repeat);
    broken.size(inputs.current_key.element(), &[b as i128, end, num_heads as i128, num_repeat, head_dim as i128]);
    broken.stage()
}
