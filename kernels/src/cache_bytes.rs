//! Where a slot's bytes lie in `cache` and `scale`: byte offsets and strides, the only place.
//!
//! Every offset is a whole number of bytes, for int4 too: strides are multiples of the head's length, and an int4 head
//! is whole bytes, since `quant_group` is even for four bits and divides `head_dim`.

use kvcache_schema::{CacheStrides, ElementType};

use crate::problem::{Geometry, Quant};

/// Byte strides of `cache` or of `scale`. Along its innermost axis a head has no gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TensorBytes {
    /// The bytes of one head: its elements in `cache`, its scales in `scale`.
    pub head_len: usize,
    /// From one slot to the next.
    pub token: usize,
    /// From one layer to the next.
    pub layer: usize,
    /// From keys to values.
    pub kv: usize,
    /// From one head to the next.
    pub head: usize,
}

impl TensorBytes {
    /// The strides of a tensor of `len` elements in heads of `inner`, whose bytes can be counted. An empty tensor has
    /// none.
    pub(crate) fn new(element: ElementType, inner: usize, strides: CacheStrides, len: usize) -> Self {
        if len == 0 {
            return Self::default();
        }
        // No stride is longer than the tensor.
        let bytes = |len: usize| element.byte_len(len);
        Self {
            head_len: bytes(inner),
            token: bytes(strides.token),
            layer: bytes(strides.layer),
            kv: bytes(strides.kv),
            head: bytes(strides.head),
        }
    }

    /// The offset of head `h` of a slot in a layer; `kv` is 0 for keys and 1 for values.
    pub const fn offset(&self, slot: usize, layer: usize, kv: usize, h: usize) -> usize {
        slot * self.token + layer * self.layer + kv * self.kv + h * self.head
    }
}

/// Where the heads of one layer lie in `cache` and `scale`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheBytes {
    /// Strides of `cache`.
    pub cache: TensorBytes,
    /// Strides of `scale`; all 0 without quantization.
    pub scale: TensorBytes,
    /// The layer.
    pub layer_idx: usize,
}

impl CacheBytes {
    /// The layer of a checked call.
    pub fn new(geometry: &Geometry) -> Self {
        let Geometry { head_dim, t2, cache, cache_len, layer_idx, quant, .. } = *geometry;
        Self {
            cache: TensorBytes::new(t2, head_dim, cache, cache_len),
            scale: quant.map_or_else(TensorBytes::default, |Quant { group, t3, scale, scale_len, .. }| {
                TensorBytes::new(t3, head_dim / group, scale, scale_len)
            }),
            layer_idx,
        }
    }

    /// Where head `h` of a slot begins in `cache` and in `scale`; `kv` is 0 for keys and 1 for values.
    pub const fn head(&self, slot: usize, kv: usize, h: usize) -> (usize, usize) {
        (self.cache.offset(slot, self.layer_idx, kv, h), self.scale.offset(slot, self.layer_idx, kv, h))
    }
}
