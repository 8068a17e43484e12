//! The rules of one tensor, attribute or number, each of which may be broken.

use kvcache_schema::{
    AttentionAttributes, AttributeSpec, ElementType, STATIC_SCALES, TypeCombination, multi_head_attention,
};

use super::Kinds;
use crate::case::{Call, Suite};
use crate::tensor::Tensor;

/// The rules of a stage that are broken.
#[derive(Default)]
pub(super) struct Broken(Kinds);

impl Broken {
    pub(super) fn unless(&mut self, holds: bool, kind: &'static str) {
        if !holds {
            self.0.push(kind);
        }
    }

    pub(super) fn stage(&mut self) -> Result<(), Kinds> {
        if self.0.is_empty() { Ok(()) } else { Err(std::mem::take(&mut self.0)) }
    }

    /// Each attribute is in its range, also where another one makes it idle.
    pub(super) fn attributes<A>(&mut self, specs: &[AttributeSpec<A>], call: &Call) {
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
    pub(super) fn attention_attributes(&mut self, call: &Call) {
        self.ranges(&AttentionAttributes::SPEC, call);
        let heads = ["num_heads", "num_kv_heads"].map(|name| call.attributes[name]);
        self.unless(heads[1] < 1 || heads[0] % heads[1] == 0, "attribute_out_of_range");
        let (scale, softcap) = (call.floats["scale"], call.floats["softcap"]);
        self.unless(scale.is_finite() && softcap.is_finite() && softcap >= 0.0, "attribute_out_of_range");
    }

    /// The combination of types is in the table, and there is a scale where one is needed.
    pub(super) fn combination(&mut self, call: &Call) {
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
    pub(super) fn types(&mut self, call: &Call) {
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
    pub(super) fn ragged_ranks(&mut self, call: &Call, cachestarts: usize) {
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

    pub(super) fn rank(&mut self, tensor: &Tensor, expected: &[usize]) {
        self.unless(expected.contains(&tensor.shape().len()), "rank_mismatch");
    }

    /// A cache, and a scale that is needed, have this rank, static scales 3; a scale without elements, for a cache that
    /// has some, stands for none.
    pub(super) fn state_ranks(&mut self, call: &Call, rank: usize) {
        self.rank(call.cache(), &[rank]);
        let Some(scale) = used_scale(call) else { return };
        if scale.shape().contains(&0) && !call.cache().shape().contains(&0) {
            self.unless(false, "scale_missing");
        } else {
            self.rank(scale, &[if call.attributes["quant_type"] == STATIC_SCALES { 3 } else { rank }]);
        }
    }

    pub(super) fn shape(&mut self, got: &[usize], expected: &[usize]) {
        self.unless(got.iter().zip(expected).all(|(got, expected)| got == expected), "shape_mismatch");
    }

    /// `cache`, and a scale that is needed, have the shapes that `shape` gives for heads of that many elements.
    pub(super) fn state_shapes(
        &mut self,
        call: &Call,
        num_heads: usize,
        head_dim: usize,
        shape: impl Fn(usize) -> Vec<usize>,
    ) {
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
    pub(super) fn attention_shapes(&mut self, call: &Call, tokens: usize, keys: &[usize]) {
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
    pub(super) fn attention_values(&mut self, call: &Call, keys: i64) {
        self.unless(call.inputs["decoding_batches"].indices()[0] >= 0, "decoding_batches_negative");
        let mask = given(call).find(|(name, _)| *name == "attn_mask");
        let width = mask.and_then(|(_, mask)| mask.shape().last());
        self.unless(width.is_none_or(|&width| width as i128 >= i128::from(keys)), "mask_too_small");
    }

    /// Starts begin with 0 and never decrease.
    pub(super) fn rising(&mut self, starts: &[i64]) {
        self.unless(starts[0] == 0, "starts_not_zero");
        self.unless(starts.is_sorted(), "starts_decrease");
    }

    /// An upper bound is at least the longest length between starts.
    pub(super) fn bound(&mut self, got: i64, starts: &[i64]) {
        let longest = starts.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).max().unwrap_or(0);
        self.unless(got >= longest, "max_too_small");
    }

    /// The bytes of an output of T1 and this shape fit in 64 bits. An axis of length 0 makes the others not matter.
    pub(super) fn size(&mut self, call: &Call, shape: &[i128]) {
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
pub(super) fn length(call: &Call, attribute: &str) -> usize {
    usize::try_from(call.attributes[attribute]).unwrap_or(usize::MAX)
}

/// Whether the operator is one of attention.
pub(super) fn attends(call: &Call) -> bool {
    call.operator.suite() == Suite::Attention
}

/// The inputs by name, but for a mask and sinks without elements, which count as absent.
fn given(call: &Call) -> impl Iterator<Item = (&'static str, &Tensor)> {
    let counts = |name, tensor: &Tensor| !["attn_mask", "head_sink"].contains(&name) || !tensor.shape().contains(&0);
    call.inputs.iter().map(|(&name, tensor)| (name, tensor)).filter(move |&(name, tensor)| counts(name, tensor))
}
