//! The order of the axes of `cache` and `scale` in static batching, and the strides that follow from it.
//!
//! A slot there is a (sequence, position) pair. The axis of sequences lies outside of the axis of positions, so the
//! distance from a sequence to the next is a whole number of slots, one more stride: slots are numbered by position,
//! and sequence `b` begins at slot `b * sequence`. Kernels then see the strides of [`CacheStrides`] and such slots.

use crate::CacheStrides;

/// One of the six axes of `cache` and `scale`. The innermost axis is the same in every layout and has no name here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StaticAxis {
    /// Sequences: `max_b` of them (MaxB).
    Batch,
    /// Positions of a sequence: `max_s` of them (MaxS).
    Position,
    /// Attention layers: `num_layer` of them (L).
    Layer,
    /// Key, then value: two.
    Kv,
    /// Cache heads: `num_heads` of them (H).
    Head,
}

/// Attribute `cache_layout` in static batching: the order of the axes of `cache` and `scale`, named by the leading one.
///
/// The innermost axis is always `head_dim` (`head_dim / quant_group` for `scale`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i64)]
pub enum StaticCacheLayout {
    /// `(MaxB, L, 2, MaxS, H, Dh)`
    BatchMajor = 0,
    /// `(L, MaxB, 2, H, MaxS, Dh)`
    LayerMajor = 1,
}

/// The lengths of the axes of a `cache` or `scale` in static batching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticCacheDims {
    /// Sequences (MaxB).
    pub max_b: usize,
    /// Positions of each sequence (MaxS).
    pub max_s: usize,
    /// Attention layers (L).
    pub num_layer: usize,
    /// Cache heads (H).
    pub num_heads: usize,
    /// The innermost axis: `head_dim` for `cache`, `head_dim / quant_group` for `scale`.
    pub inner: usize,
}

/// The strides of a `cache` or `scale` in static batching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticCacheStrides {
    /// The strides of slots, layers, key/value and heads, in elements.
    pub slot: CacheStrides,
    /// From a sequence to the next, in slots. It is the same for `cache` and for `scale`.
    pub sequence: usize,
}

impl StaticCacheLayout {
    /// Every layout, by its code.
    pub const ALL: [Self; 2] = [Self::BatchMajor, Self::LayerMajor];

    /// The layout with this code in the attribute `cache_layout`, if there is one.
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.code() == code)
    }

    /// The code in the attribute `cache_layout`.
    pub const fn code(self) -> i64 {
        self as i64
    }

    /// The outer axes, outermost first. Shapes and strides follow from this alone.
    pub const fn axes(self) -> [StaticAxis; 5] {
        use StaticAxis::{Batch, Head, Kv, Layer, Position};
        match self {
            Self::BatchMajor => [Batch, Layer, Kv, Position, Head],
            Self::LayerMajor => [Layer, Batch, Kv, Head, Position],
        }
    }

    /// The shape of a `cache` or `scale` with these lengths.
    pub fn shape(self, dims: StaticCacheDims) -> [usize; 6] {
        let [a, b, c, d, e] = self.axes().map(|axis| dims.len(axis));
        [a, b, c, d, e, dims.inner]
    }

    /// The lengths of the axes of a `cache` or `scale` of this shape. The length of the key/value axis is not kept.
    pub fn dims(self, shape: [usize; 6]) -> StaticCacheDims {
        let len = |of: StaticAxis| self.axes().iter().position(|&axis| axis == of).map_or(0, |i| shape[i]);
        StaticCacheDims {
            max_b: len(StaticAxis::Batch),
            max_s: len(StaticAxis::Position),
            num_layer: len(StaticAxis::Layer),
            num_heads: len(StaticAxis::Head),
            inner: shape[5],
        }
    }

    /// The strides of a `cache` or `scale` with these lengths; `None` if its elements, or its slots, cannot be counted.
    pub fn strides(self, dims: StaticCacheDims) -> Option<StaticCacheStrides> {
        let mut slot = CacheStrides { token: 0, layer: 0, kv: 0, head: 0 };
        let (mut stride, mut slots) = (dims.inner, 1usize);
        let mut sequence = None;
        for axis in self.axes().into_iter().rev() {
            match axis {
                StaticAxis::Position => (slot.token, slots) = (stride, 1),
                StaticAxis::Layer => slot.layer = stride,
                StaticAxis::Kv => slot.kv = stride,
                StaticAxis::Head => slot.head = stride,
                StaticAxis::Batch => sequence = Some(slots),
            }
            stride = stride.checked_mul(dims.len(axis))?;
            slots = slots.checked_mul(dims.len(axis))?;
        }
        // The number of the last slot, too, fits where slots are signed.
        isize::try_from(slots).ok()?;
        Some(StaticCacheStrides { slot, sequence: sequence? })
    }
}

impl StaticCacheDims {
    /// The length of one axis.
    pub const fn len(&self, axis: StaticAxis) -> usize {
        match axis {
            StaticAxis::Batch => self.max_b,
            StaticAxis::Position => self.max_s,
            StaticAxis::Layer => self.num_layer,
            StaticAxis::Kv => 2,
            StaticAxis::Head => self.num_heads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: StaticCacheDims = StaticCacheDims { max_b: 3, max_s: 5, num_layer: 7, num_heads: 11, inner: 13 };

    #[test]
    fn a_size_beyond_64_bits_has_no_strides() {
        for layout in StaticCacheLayout::ALL {
            assert_eq!(layout.strides(StaticCacheDims { max_s: usize::MAX / 4, ..DIMS }), None);
            // No elements, but more slots than can be counted.
            assert_eq!(layout.strides(StaticCacheDims { max_s: usize::MAX / 4, inner: 0, ..DIMS }), None);
        }
    }
}
