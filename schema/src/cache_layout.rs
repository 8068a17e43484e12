//! The order of the axes of `cache` and `scale`, and the strides that follow from it. Kernels see the strides alone.

/// One of the five axes of `cache` and `scale`. The innermost axis is the same in every layout and has no name here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Slots: `max_t` of them (MaxT).
    Token,
    /// Attention layers: `num_layer` of them (L).
    Layer,
    /// Key, then value: two.
    Kv,
    /// Cache heads: `num_heads` of them (H).
    Head,
}

/// Attribute `cache_layout`: the order of the axes of `cache` and `scale`, named by the leading one.
///
/// The innermost axis is always `head_dim` (`head_dim / quant_group` for `scale`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i64)]
pub enum CacheLayout {
    /// `(MaxT, L, 2, H, Dh)`
    TokenMajor = 0,
    /// `(L, MaxT, 2, H, Dh)`
    LayerMajor = 1,
    /// `(L, 2, MaxT, H, Dh)`
    KvMajor = 2,
    /// `(L, 2, H, MaxT, Dh)`
    HeadMajor = 3,
}

/// The lengths of the axes of a `cache` or `scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheDims {
    /// Slots (MaxT).
    pub max_t: usize,
    /// Attention layers (L).
    pub num_layer: usize,
    /// Cache heads (H).
    pub num_heads: usize,
    /// The innermost axis: `head_dim` for `cache`, `head_dim / quant_group` for `scale`.
    pub inner: usize,
}

/// Distances in elements between neighbors along each axis; along the innermost axis it is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheStrides {
    /// From one slot to the next.
    pub token: usize,
    /// From one layer to the next.
    pub layer: usize,
    /// From keys to values.
    pub kv: usize,
    /// From one head to the next.
    pub head: usize,
}

impl CacheStrides {
    /// The strides of static scales of this shape: layers, keys and values, heads, each as long as the cache's or 1.
    /// All slots share a scale.
    pub const fn of_static_scales([layers, kvs, heads]: [usize; 3]) -> Option<Self> {
        // An axis of 1 is broadcast.
        const fn step(len: usize, step: usize) -> usize {
            if len == 1 { 0 } else { step }
        }
        let Some(layer) = kvs.checked_mul(heads) else { return None };
        Some(Self { token: 0, layer: step(layers, layer), kv: step(kvs, heads), head: step(heads, 1) })
    }

    /// The offset in elements of the first element of `(slot, layer, kv, h)`; `kv` is 0 for keys and 1 for values.
    pub const fn offset(&self, slot: usize, layer: usize, kv: usize, h: usize) -> usize {
        slot * self.token + layer * self.layer + kv * self.kv + h * self.head
    }
}

impl CacheLayout {
    /// Every layout, by its code.
    pub const ALL: [Self; 4] = [Self::TokenMajor, Self::LayerMajor, Self::KvMajor, Self::HeadMajor];

    /// The layout with this code in the attribute `cache_layout`, if there is one.
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.code() == code)
    }

    /// The code in the attribute `cache_layout`.
    pub const fn code(self) -> i64 {
        self as i64
    }

    /// The outer axes, outermost first. Shapes and strides follow from this alone.
    pub const fn axes(self) -> [Axis; 4] {
        use Axis::{Head, Kv, Layer, Token};
        match self {
            Self::TokenMajor => [Token, Layer, Kv, Head],
            Self::LayerMajor => [Layer, Token, Kv, Head],
            Self::KvMajor => [Layer, Kv, Token, Head],
            Self::HeadMajor => [Layer, Kv, Head, Token],
        }
    }

    /// The shape of a `cache` or `scale` with these lengths.
    pub fn shape(self, dims: CacheDims) -> [usize; 5] {
        let [a, b, c, d] = self.axes().map(|axis| dims.len(axis));
        [a, b, c, d, dims.inner]
    }

    /// The lengths of the axes of a `cache` or `scale` of this shape. The length of the key/value axis is not kept.
    pub fn dims(self, shape: [usize; 5]) -> CacheDims {
        let len = |of: Axis| self.axes().iter().position(|&axis| axis == of).map_or(0, |i| shape[i]);
        CacheDims { max_t: len(Axis::Token), num_layer: len(Axis::Layer), num_heads: len(Axis::Head), inner: shape[4] }
    }

    /// The strides of a `cache` or `scale` with these lengths, in elements; `None` if the tensor's size overflows.
    pub fn strides(self, dims: CacheDims) -> Option<CacheStrides> {
        let mut strides = CacheStrides { token: 0, layer: 0, kv: 0, head: 0 };
        let mut stride = dims.inner;
        for axis in self.axes().into_iter().rev() {
            *match axis {
                Axis::Token => &mut strides.token,
                Axis::Layer => &mut strides.layer,
                Axis::Kv => &mut strides.kv,
                Axis::Head => &mut strides.head,
            } = stride;
            stride = stride.checked_mul(dims.len(axis))?;
        }
        Some(strides)
    }
}

impl CacheDims {
    /// The length of one axis.
    pub const fn len(&self, axis: Axis) -> usize {
        match axis {
            Axis::Token => self.max_t,
            Axis::Layer => self.num_layer,
            Axis::Kv => 2,
            Axis::Head => self.num_heads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: CacheDims = CacheDims { max_t: 5, num_layer: 3, num_heads: 7, inner: 11 };

    #[test]
    fn a_layout_is_only_strides() {
        for layout in CacheLayout::ALL {
            let strides = layout.strides(DIMS).unwrap();
            let by_axis = layout.axes().map(|axis| match axis {
                Axis::Token => strides.token,
                Axis::Layer => strides.layer,
                Axis::Kv => strides.kv,
                Axis::Head => strides.head,
            });
            // Each axis steps over all that is inside of it, so that offsets meet every element once.
            let shape = layout.shape(DIMS);
            for (i, stride) in by_axis.into_iter().enumerate() {
                assert_eq!(stride, shape[i + 1..].iter().product::<usize>());
            }
            assert_eq!(layout.dims(shape), DIMS);
        }
    }

    #[test]
    fn a_size_beyond_64_bits_has_no_strides() {
        let dims = CacheDims { max_t: usize::MAX / 4, ..DIMS };
        assert!(CacheLayout::ALL.into_iter().all(|layout| layout.strides(dims).is_none()));
    }
}
