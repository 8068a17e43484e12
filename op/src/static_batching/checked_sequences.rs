//! Validation: every rule is checked before the first byte is written.

use kvcache_kernels::Geometry;
use kvcache_schema::{ElementType, StaticCacheDims};

use super::static_config::StaticConfig;
use crate::error::Error;
use crate::tensor::{TensorMut, TensorRef};
use crate::validate::{self, CheckedTensors, ExpectedOutputs, Sizes, equal_type, indices, shapes};

/// The sequences of a call, which are all alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sequences {
    pub(crate) seqlen: usize,
    /// The position of the first current token.
    pub(crate) start_pos: usize,
    /// From one to the next, in slots.
    pub(crate) stride: usize,
}

/// What is known of a call whose types, shapes and memory have been checked, but no value of any tensor.
pub(crate) struct CheckedSequences {
    tensors: CheckedTensors,
    num_repeat: usize,
    seqlen: usize,
    /// Positions of each sequence in the cache (MaxS).
    max_s: usize,
    stride: usize,
}

/// What is known of a call of which everything but the outputs has been checked.
#[derive(Debug, Clone)]
pub(crate) struct CheckedCall {
    pub(crate) tensors: CheckedTensors,
    pub(crate) sequences: Sequences,
    pub(crate) outputs: ExpectedOutputs<4>,
}

/// Checks types, shapes and memory. [`validate::types`] has found T1, T2 and T3 to be a legal combination.
pub(crate) fn tensors(
    config: &StaticConfig,
    current: [&TensorRef<'_>; 2],
    start_pos: &TensorRef<'_>,
    cache: &TensorMut<'_>,
    scale: Option<&TensorMut<'_>>,
) -> Result<CheckedSequences, Error> {
    // A scale that is given without quantization is left untouched, and may be anything.
    let scale = config.cache.quant.and(scale);
    equal_type("start_pos", start_pos.element, ElementType::Int64)?;

    let Dims { batch, seqlen, cache: dims, scale: scale_dims } = shapes(config, current, start_pos, cache, scale)?;
    let strides = config.layout.strides(dims);
    let sizes = Sizes {
        batch,
        num_heads: dims.num_heads,
        head_dim: dims.inner,
        cache: strides.map(|strides| strides.slot),
        scale: config.layout.strides(scale_dims).map(|strides| strides.slot),
    };
    let (t1, index_inputs) = (current[0].element, [("start_pos", start_pos)]);
    let tensors = validate::tensors(&config.cache, t1, Some(current), &index_inputs, cache, scale, &sizes)?;
    let stride = strides.map_or(0, |strides| strides.sequence);
    Ok(CheckedSequences { tensors, num_repeat: config.cache.num_repeat, seqlen, max_s: dims.max_s, stride })
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
    [key, value]: [&TensorRef<'_>; 2],
    start_pos: &TensorRef<'_>,
    cache: &TensorMut<'_>,
    scale: Option<&TensorMut<'_>>,
) -> Result<Dims, Error> {
    let [batch, seqlen, num_heads, head_dim] = shapes::rank("current_key", &key.shape)?;
    shapes::rank::<4>("current_value", &value.shape)?;
    shapes::scalar_or_one_axis("start_pos", &start_pos.shape)?;
    let cache_shape = shapes::rank("cache", &cache.shape)?;
    if let Some(scale) = scale {
        shapes::scale_rank::<6>(&scale.shape, &cache.shape, config.cache.quant)?;
    }

    shapes::equal("current_value", &value.shape, &key.shape, "as in current_key")?;
    shapes::equal("start_pos", &start_pos.shape, &[1][..start_pos.shape.len()], "a single number")?;
    let num_layer = config.cache.num_layer;
    let dims = StaticCacheDims { num_layer, num_heads, inner: head_dim, ..config.layout.dims(cache_shape) };
    let reason = "by cache_layout, num_layer and the shape of current_key";
    shapes::equal("cache", &cache.shape, &config.layout.shape(dims), reason)?;
    let scale_dims = StaticCacheDims { inner: shapes::scales_per_head(&config.cache, dims.inner)?, ..dims };
    if let Some(scale) = scale {
        shapes::equal(
            "scale",
            &scale.shape,
            &config.layout.shape(scale_dims),
            "by the shape of cache and quant_group",
        )?;
    }
    if batch > dims.max_b {
        return Err(Error::BatchTooLarge { batch, max_b: dims.max_b });
    }
    Ok(Dims { batch, seqlen, cache: dims, scale: scale_dims })
}

impl CheckedSequences {
    /// Checks the value of `start_pos`, whose type, shape and memory have been checked, and the size of the outputs.
    ///
    /// # Safety
    /// `start_pos` is in host memory.
    pub(crate) unsafe fn at(self, start_pos: &TensorRef<'_>) -> Result<CheckedCall, Error> {
        let Self { tensors, num_repeat, seqlen, max_s, stride } = self;
        let got = indices::values(start_pos)[0];
        let Ok(start_pos) = usize::try_from(got) else {
            return Err(Error::StartPosNegative { b: None, got });
        };
        let Some(kvlen) = start_pos.checked_add(seqlen).filter(|&kvlen| kvlen <= max_s) else {
            return Err(Error::PositionRange { start_pos, seqlen, max_s });
        };
        let Geometry { batch, head_dim, .. } = tensors.geometry;
        let shape = |heads| [batch, kvlen, heads, head_dim];
        let reason = "the shape (B, start_pos + S, H * num_repeat, Dh) of this call";
        let outputs = ExpectedOutputs::of(&tensors.geometry, num_repeat, shape, reason)?;
        Ok(CheckedCall { tensors, sequences: Sequences { seqlen, start_pos, stride }, outputs })
    }
}
