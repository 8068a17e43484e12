//! Validation: every rule is checked before the first byte is written.

use std::ptr;

use kvcache_kernels::{Geometry, Pointers, Quant};
use kvcache_schema::{ElementType, StaticCacheDims};

use super::attributes::StaticConfig;
use crate::attributes;
use crate::error::Error;
use crate::tensor::{TensorMut, TensorRef};
use crate::validate::{self, CURRENT, Extents, equal_type, indices, memory, shapes};

/// The current tokens of a call.
#[derive(Clone, Copy)]
pub(crate) enum Current<'t, 'a> {
    /// `current_key` and `current_value`.
    Tensors([&'t TensorRef<'a>; 2]),
    /// They come later, with these first two axes. H and Dh are then what `cache` says.
    Later([usize; 2]),
}

/// The sequences of a call, which are all alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sequences {
    /// Current tokens (S).
    pub(crate) seqlen: usize,
    /// The position of the first current token.
    pub(crate) start_pos: usize,
    /// From one to the next, in slots.
    pub(crate) stride: usize,
}

/// What is known of a call whose types, shapes and memory have been checked, but no value of any tensor.
pub(crate) struct CheckedTensors {
    pub(crate) geometry: Geometry,
    seqlen: usize,
    /// Positions of each sequence in the cache (MaxS).
    max_s: usize,
    stride: usize,
    current: [*const u8; 2],
    cache: *mut u8,
    scale: *mut u8,
    extents: Extents,
}

/// What is known of a call of which everything but the outputs has been checked.
#[derive(Debug, Clone)]
pub(crate) struct CheckedCall {
    pub(crate) geometry: Geometry,
    pub(crate) sequences: Sequences,
    current: [*const u8; 2],
    cache: *mut u8,
    scale: *mut u8,
    /// The memory of every tensor checked so far.
    pub(crate) extents: Extents,
    /// The shape that `key` and `value` must have.
    pub(crate) output_shape: [usize; 4],
}

/// Checks types, shapes and memory. [`validate::types`] has found T1, T2 and T3 to be a legal combination.
pub(crate) fn tensors(
    config: &StaticConfig,
    t1: ElementType,
    current: Current<'_, '_>,
    start_pos: &TensorRef<'_>,
    cache: &TensorMut<'_>,
    scale: Option<&TensorMut<'_>>,
) -> Result<CheckedTensors, Error> {
    // A scale that is given without quantization is left untouched, and may be anything.
    let scale = config.quant.and(scale);
    equal_type("start_pos", start_pos.element, ElementType::Int64)?;

    let Dims { batch, seqlen, cache: dims, scale: scale_dims } = shapes(config, current, start_pos, cache, scale)?;

    let mut extents = Extents::default();
    if let Current::Tensors(current) = current {
        validate::read_current(&mut extents, current)?;
    }
    extents.read("start_pos", start_pos.into())?;
    extents.write("cache", cache.into())?;
    if let Some(scale) = scale {
        extents.write("scale", scale.into())?;
    }

    let strides = config.layout.strides(dims).ok_or_else(|| validate::overflow("cache", &cache.shape))?;
    let quant = match (config.quant, scale) {
        (Some(bits), Some(scale)) => Some(Quant {
            bits,
            group: config.quant_group,
            t3: scale.element,
            scale_len: memory::len("scale", &scale.shape)?,
            scale: config.layout.strides(scale_dims).ok_or_else(|| validate::overflow("scale", &scale.shape))?.slot,
        }),
        _ => None,
    };
    Ok(CheckedTensors {
        geometry: Geometry {
            batch,
            num_heads: dims.num_heads,
            head_dim: dims.inner,
            num_repeat: config.num_repeat,
            layer_idx: config.layer_idx,
            t1,
            t2: cache.element,
            quant,
            cache_len: memory::len("cache", &cache.shape)?,
            cache: strides.slot,
        },
        seqlen,
        max_s: dims.max_s,
        stride: strides.sequence,
        current: match current {
            Current::Tensors(tensors) => tensors.map(|tensor| tensor.data),
            Current::Later(_) => [ptr::null(); 2],
        },
        cache: cache.data,
        scale: scale.map_or(ptr::null_mut(), |scale| scale.data),
        extents,
    })
}

/// The dimensions of a call, on which all inputs agree.
struct Dims {
    batch: usize,
    seqlen: usize,
    cache: StaticCacheDims,
    /// The axes of `scale`, if there were one.
    scale: StaticCacheDims,
}

/// Checks ranks, then shapes.
fn shapes(
    config: &StaticConfig,
    current: Current<'_, '_>,
    start_pos: &TensorRef<'_>,
    cache: &TensorMut<'_>,
    scale: Option<&TensorMut<'_>>,
) -> Result<Dims, Error> {
    let mut current_dims = None;
    if let Current::Tensors([key, value]) = current {
        current_dims = Some(shapes::rank::<4>("current_key", &key.shape)?);
        shapes::rank::<4>("current_value", &value.shape)?;
    }
    shapes::scalar_or_one_axis("start_pos", &start_pos.shape)?;
    let cache_shape = shapes::rank("cache", &cache.shape)?;
    if let Some(scale) = scale {
        shapes::scale_rank::<6>(&scale.shape, &cache.shape, config.quant)?;
    }

    if let Current::Tensors([key, value]) = current {
        shapes::equal("current_value", &value.shape, &key.shape, "as in current_key")?;
    }
    shapes::equal("start_pos", &start_pos.shape, &[1][..start_pos.shape.len()], "a single number")?;
    let mut dims = StaticCacheDims { num_layer: config.num_layer, ..config.layout.dims(cache_shape) };
    let mut reason = "by cache_layout and num_layer";
    if let Some([_, _, num_heads, head_dim]) = current_dims {
        dims = StaticCacheDims { num_heads, inner: head_dim, ..dims };
        reason = "by cache_layout, num_layer and the shape of current_key";
    }
    shapes::equal("cache", &cache.shape, &config.layout.shape(dims), reason)?;
    let head_dim = dims.inner;
    if config.quant.is_some() && !head_dim.is_multiple_of(config.quant_group) {
        return Err(Error::HeadDimNotDivisible { head_dim, quant_group: config.quant_group });
    }
    let scale_dims = StaticCacheDims { inner: head_dim / config.quant_group, ..dims };
    if let Some(scale) = scale {
        shapes::equal(
            "scale",
            &scale.shape,
            &config.layout.shape(scale_dims),
            "by the shape of cache and quant_group",
        )?;
    }
    let [batch, seqlen] = match (current_dims, current) {
        (Some([batch, seqlen, ..]), _) | (None, Current::Later([batch, seqlen])) => [batch, seqlen],
        (None, Current::Tensors(_)) => unreachable!("current tensors have dimensions"),
    };
    if batch > dims.max_b {
        return Err(Error::BatchTooLarge { batch, max_b: dims.max_b });
    }
    Ok(Dims { batch, seqlen, cache: dims, scale: scale_dims })
}

/// What decides the shape of a call's outputs.
pub(crate) const OUTPUT_SHAPE: &str = "the shape (B, start_pos + S, H * num_repeat, Dh) of this call";

impl CheckedTensors {
    /// An upper bound of the slots' numbers.
    #[cfg(feature = "cuda")]
    pub(crate) fn slots(&self) -> usize {
        self.geometry.cache_len.checked_div(self.geometry.cache.token).unwrap_or(0)
    }

    /// Checks the value of `start_pos`, whose type, shape and memory have been checked, and the size of the outputs.
    ///
    /// # Safety
    /// `start_pos` is in host memory.
    pub(crate) unsafe fn at(self, start_pos: &TensorRef<'_>) -> Result<CheckedCall, Error> {
        let Self { geometry, seqlen, max_s, stride, current, cache, scale, extents } = self;
        let got = indices::values(start_pos)[0];
        let Ok(start_pos) = usize::try_from(got) else {
            return Err(Error::StartPosNegative { b: None, got });
        };
        let Some(kvlen) = start_pos.checked_add(seqlen).filter(|&kvlen| kvlen <= max_s) else {
            return Err(Error::PositionRange { start_pos, seqlen, max_s });
        };
        let Geometry { batch, num_heads, num_repeat, head_dim, t1, .. } = geometry;
        let output_heads = num_heads
            .checked_mul(num_repeat)
            .ok_or_else(|| validate::overflow("key", &[batch, kvlen, num_heads, num_repeat, head_dim].into()))?;
        let output_shape = [batch, kvlen, output_heads, head_dim];
        memory::bytes("key", t1, &output_shape.into())?;
        let sequences = Sequences { seqlen, start_pos, stride };
        Ok(CheckedCall { geometry, sequences, current, cache, scale, extents, output_shape })
    }
}

impl CheckedCall {
    /// The call of one layer: this one, of which everything but the current tokens has been checked, with those of the
    /// layer.
    pub(crate) fn layer(
        &self,
        num_layer: usize,
        layer_idx: usize,
        current: [&TensorRef<'_>; 2],
    ) -> Result<Self, Error> {
        attributes::layer_idx(layer_idx, num_layer)?;
        let Geometry { batch, num_heads, head_dim, t1, .. } = self.geometry;
        let expected = [batch, self.sequences.seqlen, num_heads, head_dim];
        for (name, tensor) in CURRENT.into_iter().zip(current) {
            equal_type(name, tensor.element, t1)?;
            shapes::equal(name, &tensor.shape, &expected, "the shape (B, S, H, Dh) of this call")?;
        }
        let mut extents = self.extents.clone();
        validate::read_current(&mut extents, current)?;
        Ok(Self {
            geometry: Geometry { layer_idx, ..self.geometry },
            current: current.map(|tensor| tensor.data),
            extents,
            ..*self
        })
    }

    /// The pointers of a call with these outputs, which are checked here.
    pub(crate) fn pointers(&self, key: &TensorMut<'_>, value: &TensorMut<'_>) -> Result<Pointers, Error> {
        let expected = (&self.output_shape[..], OUTPUT_SHAPE);
        validate::outputs(self.geometry.t1, expected, self.extents.clone(), [key, value])?;
        let &Self { current, cache, scale, .. } = self;
        Ok(Pointers { current, cache, scale, outputs: [key.data, value.data] })
    }
}
