//! The rules of a legal call, in stages: a stage's rules can be asked only where the stages before it hold. No line is
//! shared with the operators' own checks.

use std::collections::HashSet;

use kvcache_schema::{
    AttentionAttributes, AttributeSpec, Attributes, CacheDims, CacheLayout, ElementType, STATIC_SCALES,
    StaticAttributes, StaticCacheDims, StaticCacheLayout, TypeCombination, multi_head_attention,
};

use crate::case::{Call, Operator, Suite};
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

/// The rules of a stage that are broken.
#[derive(Default)]
struct Broken(Kinds);

impl Broken {
    fn unless(&mut self, holds: bool, kind: &'static str) {
        if !holds {
            self.0.push(kind);
        }
    }

    fn stage(&mut self) -> Result<(), Kinds> {
        if self.0.is_empty() { Ok(()) } else { Err(std::mem::take(&mut self.0)) }
    }

    /// Each attribute is in its range, also where another one makes it idle.
    fn attributes<A>(&mut self, specs: &[AttributeSpec<A>], call: &Call) {
        let value = |name: &str| call.attributes[name];
        self.ranges(specs, call);
        let (num_layer, quant_bit) = (value("num_layer"), value("quant_bit"));
        let (quant_group, quant_type) = (value("quant_group"), value("quant_type"));
        self.unless(num_layer < 1 || value("layer_idx") < num_layer, "attribute_out_of_range");
        self.unless(quant_bit != 4 || quant_group < 1 || quant_group % 2 == 0, "attribute_out_of_range");
        self.unless(quant_bit == 8 || !matches!(quant_type, 1 | STATIC_SCALES), "attribute_out_of_range");
        let rotates = call.attributes.get("quant_rotation").is_some_and(|&rotation| rotation != 0);
        self.unless(quant_bit != 0 || !rotates, "attribute_out_of_range");
    }

    /// The attributes that the operator has of these are in their ranges.
    fn ranges<A>(&mut self, specs: &[AttributeSpec<A>], call: &Call) {
        for spec in specs {
            let value = call.attributes.get(spec.name);
            self.unless(value.is_none_or(|&value| spec.contains(value)), "attribute_out_of_range");
        }
    }

    /// The attributes of attention are in their ranges.
    fn attention_attributes(&mut self, call: &Call) {
        self.ranges(&AttentionAttributes::SPEC, call);
        let heads = ["num_heads", "num_kv_heads"].map(|name| call.attributes[name]);
        self.unless(heads[1] < 1 || heads[0] % heads[1] == 0, "attribute_out_of_range");
        let (scale, softcap) = (call.floats["scale"], call.floats["softcap"]);
        self.unless(scale.is_finite() && softcap.is_finite() && softcap >= 0.0, "attribute_out_of_range");
    }

    /// The combination of types is in the table, and there is a scale where one is needed.
    fn combination(&mut self, call: &Call) {
        let (t1, quant_bit) = (call.t1(), call.attributes["quant_bit"]);
        let is_legal = |t3| {
            let row = TypeCombination { quant_bit, t1, t2: call.cache().element(), t3 };
            row.is_legal() && row.quant_types().contains(&call.attributes["quant_type"])
        };
        let t3 = call.scale.as_ref().map(Tensor::element);
        let only_scale_missing = t3.is_none() && is_legal(Some(ElementType::Float32));
        if is_legal(t3) || only_scale_missing {
            self.unless(quant_bit == 0 || t3.is_some(), "scale_missing");
        } else {
            self.unless(false, "illegal_types");
        }
    }

    /// Every tensor has its type, and T1 has scores where they are needed.
    fn types(&mut self, call: &Call) {
        let has_scores = multi_head_attention::T1.contains(&call.t1());
        self.unless(!attends(call) || has_scores, "attention_type");
        for (name, tensor) in given(call) {
            let expected = match name {
                "query" | "key" | "value" | "current_key" | "current_value" | "attn_mask" | "head_sink" => call.t1(),
                _ => ElementType::Int64,
            };
            self.unless(tensor.element() == expected, "type_mismatch");
        }
    }

    /// The inputs of a ragged batch have their ranks; a page table has this one.
    fn ragged_ranks(&mut self, call: &Call, cachestarts: usize) {
        for (name, tensor) in given(call) {
            let ranks: &[usize] = match name {
                "query" | "key" | "value" | "current_key" | "current_value" => &[3],
                "attn_mask" => &[2, 3],
                "max_seqlen" | "max_kvlen" | "decoding_batches" => &[0, 1],
                "cachestarts" => &[cachestarts],
                _ => &[1],
            };
            self.rank(tensor, ranks);
        }
    }

    fn rank(&mut self, tensor: &Tensor, expected: &[usize]) {
        self.unless(expected.contains(&tensor.shape().len()), "rank_mismatch");
    }

    /// A cache, and a scale that is needed, have this rank, static scales 3; a scale without elements, for a cache that
    /// has some, stands for none.
    fn state_ranks(&mut self, call: &Call, rank: usize) {
        self.rank(call.cache(), &[rank]);
        let Some(scale) = used_scale(call) else { return };
        if scale.shape().contains(&0) && !call.cache().shape().contains(&0) {
            self.unless(false, "scale_missing");
        } else {
            self.rank(scale, &[if call.attributes["quant_type"] == STATIC_SCALES { 3 } else { rank }]);
        }
    }

    fn shape(&mut self, got: &[usize], expected: &[usize]) {
        self.unless(got.iter().zip(expected).all(|(got, expected)| got == expected), "shape_mismatch");
    }

    /// `cache`, and a scale that is needed, have the shapes that `shape` gives for heads of that many elements.
    fn state_shapes(&mut self, call: &Call, num_heads: usize, head_dim: usize, shape: impl Fn(usize) -> Vec<usize>) {
        self.shape(call.cache().shape(), &shape(head_dim));
        let Some(scale) = used_scale(call) else { return };
        if call.attributes["quant_type"] == STATIC_SCALES {
            let full = [length(call, "num_layer"), 2, num_heads];
            let broadcast = |(&got, full)| if got == 1 { 1 } else { full };
            let expected: Vec<_> = scale.shape().iter().zip(full).map(broadcast).collect();
            return self.shape(scale.shape(), &expected);
        }
        let group = length(call, "quant_group");
        self.shape(scale.shape(), &shape(head_dim / group));
        self.unless(head_dim.is_multiple_of(group), "head_dim_not_divisible");
    }

    /// What attends has the shapes that the attributes say, and rows for these tokens; `keys` the heads.
    fn attention_shapes(&mut self, call: &Call, tokens: usize, keys: &[usize]) {
        let [num_heads, num_kv_heads, head_dim] =
            ["num_heads", "num_kv_heads", "head_dim"].map(|name| length(call, name));
        self.shape(&keys[1..], &[if num_kv_heads == 0 { num_heads } else { num_kv_heads }, head_dim]);
        for (name, tensor) in given(call) {
            match (name, tensor.shape()) {
                ("query", shape) => self.shape(shape, &[tokens, num_heads, head_dim]),
                ("attn_mask", &[planes, rows, _]) => self.shape(&[planes, rows], &[num_heads, tokens]),
                ("attn_mask", shape) => self.shape(shape, &[tokens]),
                ("head_sink", shape) => self.shape(shape, &[num_heads]),
                ("decoding_batches", shape) => self.shape(shape, &[1]),
                _ => {}
            }
        }
    }

    /// `decoding_batches` is a number of sequences, and a mask has columns for so many keys.
    fn attention_values(&mut self, call: &Call, keys: i64) {
        self.unless(call.inputs["decoding_batches"].indices()[0] >= 0, "decoding_batches_negative");
        let mask = given(call).find(|(name, _)| *name == "attn_mask");
        let width = mask.and_then(|(_, mask)| mask.shape().last());
        self.unless(width.is_none_or(|&width| width as i128 >= i128::from(keys)), "mask_too_small");
    }

    /// Starts begin with 0 and never decrease.
    fn rising(&mut self, starts: &[i64]) {
        self.unless(starts[0] == 0, "starts_not_zero");
        self.unless(starts.is_sorted(), "starts_decrease");
    }

    /// An upper bound is at least the longest length between starts.
    fn bound(&mut self, got: i64, starts: &[i64]) {
        let longest = starts.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).max().unwrap_or(0);
        self.unless(got >= longest, "max_too_small");
    }

    /// The bytes of an output of T1 and this shape fit in 64 bits. An axis of length 0 makes the others not matter.
    fn size(&mut self, call: &Call, shape: &[i128]) {
        let times = |bytes: i128, axis: &i128| bytes.checked_mul(*axis).filter(|&bytes| bytes < 1 << 63);
        let bytes = shape.iter().try_fold(call.t1().bits() as i128 / 8, times);
        self.unless(shape.contains(&0) || bytes.is_some(), "size_overflow");
    }
}

/// The scale, where there is quantization.
fn used_scale(call: &Call) -> Option<&Tensor> {
    call.scale.as_ref().filter(|_| call.attributes["quant_bit"] != 0)
}

/// An attribute in its range as a length.
fn length(call: &Call, attribute: &str) -> usize {
    usize::try_from(call.attributes[attribute]).unwrap_or(usize::MAX)
}

/// Whether the operator is one of attention.
fn attends(call: &Call) -> bool {
    call.operator.suite() == Suite::Attention
}

/// The inputs by name, but for a mask and sinks without elements, which count as absent.
fn given(call: &Call) -> impl Iterator<Item = (&'static str, &Tensor)> {
    let counts = |name, tensor: &Tensor| !["attn_mask", "head_sink"].contains(&name) || !tensor.shape().contains(&0);
    call.inputs.iter().map(|(&name, tensor)| (name, tensor)).filter(move |&(name, tensor)| counts(name, tensor))
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
