//! The operator's attributes.

use kvcache_op::Attributes;

/// The attributes of the operator, as its specification names them.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct kvcache_attributes {
    /// Layers that share the cache (L).
    pub num_layer: i64,
    /// The layer that a call stores to and loads from.
    pub layer_idx: i64,
    /// Bits of a quantized cache element: 8 or 4; 0 is no quantization.
    pub quant_bit: i64,
    /// Neighbors along head_dim that share one scale.
    pub quant_group: i64,
    /// How often each cache head is repeated in key and value.
    pub num_repeat: i64,
    /// 0: cachestarts holds the first slot of each sequence; 1: its pages' first slots.
    pub cache_mode: i64,
    /// The shape of cache, MaxT being its slots: 0 (MaxT, L, 2, H, Dh), 1 (L, MaxT, 2, H, Dh), 2 (L, 2, MaxT, H, Dh),
    /// 3 (L, 2, H, MaxT, Dh); the axis of 2 has keys, then values. Its type is T1 or float, or int8 and int4 where
    /// quant_bit is 8 and 4. The shape of scale, float16 or float32, has Dh / quant_group in the place of Dh.
    pub cache_layout: i64,
    /// Tokens in a page, in cache_mode 1.
    pub page_size: i64,
    /// What the elements of a quantized cache are: 0 integers, 1 float8e4m3fn, where quant_bit is 8, 2 float8e4m3fn
    /// with static scales: scale then has the shape (L, 2, H), each of which may be 1, and is only read.
    pub quant_type: i64,
    /// 1: keys are multiplied by a Hadamard matrix before they are quantized, and once more when they are loaded; 0:
    /// not.
    pub quant_rotation: i64,
}

/// Copies the attributes into another struct, whose fields have the same names.
macro_rules! attributes {
    ($from:expr => $To:ident) => {
        $To {
            num_layer: $from.num_layer,
            layer_idx: $from.layer_idx,
            quant_bit: $from.quant_bit,
            quant_group: $from.quant_group,
            num_repeat: $from.num_repeat,
            cache_mode: $from.cache_mode,
            cache_layout: $from.cache_layout,
            page_size: $from.page_size,
            quant_type: $from.quant_type,
            quant_rotation: $from.quant_rotation,
        }
    };
}

impl From<&kvcache_attributes> for Attributes {
    fn from(attributes: &kvcache_attributes) -> Self {
        attributes!(attributes => Self)
    }
}

/// The attributes' defaults.
#[unsafe(no_mangle)]
pub extern "C" fn kvcache_attributes_default() -> kvcache_attributes {
    let default = Attributes::default();
    attributes!(default => kvcache_attributes)
}
