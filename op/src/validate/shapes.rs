//! Checks ranks and shapes, and that all inputs agree on B, H, Dh, L and MaxT.

use kvcache_schema::{CacheDims, CacheMode, CacheStrides, QuantBit};

use crate::config::{CacheConfig, Config};
use crate::error::Error;
use crate::operands::IndexInputs;
use crate::tensor::{Shape, TensorMut, TensorRef};

/// The dimensions of a call, on which all inputs agree.
pub(crate) struct Dims {
    pub(crate) batch: usize,
    pub(crate) num_heads: usize,
    pub(crate) head_dim: usize,
    /// Slots of the cache (MaxT), or more.
    pub(crate) max_t: usize,
    /// Page table entries per sequence (MaxP); 0 in offset mode.
    pub(crate) max_p: usize,
    /// The strides of `cache`; `None` where it is too large.
    pub(crate) cache: Option<CacheStrides>,
    /// The strides of `scale`, if there were one; `None` where it is too large.
    pub(crate) scale: Option<CacheStrides>,
}

/// Checks ranks, then shapes. Without `current` tensors, H and Dh are what `cache` says.
pub(super) fn check(
    config: &Config,
    current: Option<[&TensorRef<'_>; 2]>,
    inputs: &IndexInputs<'_>,
    cache: &TensorMut<'_>,
    scale: Option<&TensorMut<'_>>,
) -> Result<Dims, Error> {
    if config.mode == CacheMode::Paged && inputs.cachestarts.shape.len() == 1 {
        return Err(Error::LegacyPageTable { shape: inputs.cachestarts.shape.clone() });
    }
    let mut current_dims = None;
    if let Some([key, value]) = current {
        current_dims = Some(rank::<3>("current_key", &key.shape)?);
        rank::<3>("current_value", &value.shape)?;
    }
    let [starts] = rank("seqstarts", &inputs.seqstarts.shape)?;
    let _: [usize; 1] = rank("kvstarts", &inputs.kvstarts.shape)?;
    let max_p = match config.mode {
        CacheMode::Offset => rank("cachestarts", &inputs.cachestarts.shape).map(|[_]| None)?,
        CacheMode::Paged => rank("cachestarts", &inputs.cachestarts.shape).map(|[_, max_p]| Some(max_p))?,
    };
    let _: [usize; 1] = rank("start_pos", &inputs.start_pos.shape)?;
    scalar_or_one_axis("max_seqlen", &inputs.max_seqlen.shape)?;
    scalar_or_one_axis("max_kvlen", &inputs.max_kvlen.shape)?;
    let cache_shape = rank("cache", &cache.shape)?;
    if let Some(scale) = scale {
        match config.cache.static_scales {
            true => scale_rank::<3>(&scale.shape, &cache.shape, config.cache.quant)?,
            false => scale_rank::<5>(&scale.shape, &cache.shape, config.cache.quant)?,
        }
    }

    if let Some([key, value]) = current {
        equal("current_value", &value.shape, &key.shape, "as in current_key")?;
    }
    let Some(batch) = starts.checked_sub(1) else {
        let shape = inputs.seqstarts.shape.clone();
        let reason = "as many as sequences, and the total";
        return Err(Error::ShapeMismatch { input: "seqstarts", shape, axis: 0, got: 0, expected: 1, reason });
    };
    equal("kvstarts", &inputs.kvstarts.shape, &[starts], "as in seqstarts")?;
    let cachestarts: &[usize] = match max_p {
        None => &[batch],
        Some(max_p) => &[batch, max_p],
    };
    const PER_SEQUENCE: &str = "one for each sequence: one less than seqstarts";
    equal("cachestarts", &inputs.cachestarts.shape, cachestarts, PER_SEQUENCE)?;
    equal("start_pos", &inputs.start_pos.shape, &[batch], PER_SEQUENCE)?;
    for (name, bound) in [("max_seqlen", &inputs.max_seqlen.shape), ("max_kvlen", &inputs.max_kvlen.shape)] {
        equal(name, bound, &[1][..bound.len()], "a single number")?;
    }

    let mut cache_dims = CacheDims { num_layer: config.cache.num_layer, ..config.layout.dims(cache_shape) };
    let mut reason = "by cache_layout and num_layer";
    if let Some([_, num_heads, head_dim]) = current_dims {
        cache_dims = CacheDims { num_heads, inner: head_dim, ..cache_dims };
        reason = "by cache_layout, num_layer and the shape of current_key";
    }
    equal("cache", &cache.shape, &config.layout.shape(cache_dims), reason)?;
    let scale_strides = if config.cache.static_scales {
        let full = [cache_dims.num_layer, 2, cache_dims.num_heads];
        static_scales(scale.map(|scale| &scale.shape), full)?
    } else {
        let scale_dims = CacheDims { inner: scales_per_head(&config.cache, cache_dims.inner)?, ..cache_dims };
        if let Some(scale) = scale {
            equal("scale", &scale.shape, &config.layout.shape(scale_dims), "by the shape of cache and quant_group")?;
        }
        config.layout.strides(scale_dims)
    };
    Ok(Dims {
        batch,
        num_heads: cache_dims.num_heads,
        head_dim: cache_dims.inner,
        max_t: cache_dims.max_t,
        max_p: max_p.unwrap_or_default(),
        cache: config.layout.strides(cache_dims),
        scale: scale_strides,
    })
}

/// Checks the shape of static scales, of which each axis has the `full` length or 1; returns their strides.
fn static_scales(shape: Option<&Shape>, full: [usize; 3]) -> Result<Option<CacheStrides>, Error> {
    let Some(shape) = shape else { return Ok(None) };
    let got = rank::<3>("scale", shape)?;
    let expected: [usize; 3] = std::array::from_fn(|axis| if got[axis] == 1 { 1 } else { full[axis] });
    equal("scale", shape, &expected, "static scales are (L, 2, H), or 1 in place of any of these")?;
    Ok(CacheStrides::of_static_scales(got))
}

/// The scales of a head in a `scale` that belongs to a `cache` of such heads.
pub(crate) fn scales_per_head(config: &CacheConfig, head_dim: usize) -> Result<usize, Error> {
    if config.static_scales {
        return Ok(1);
    }
    if config.quant.is_some() && !head_dim.is_multiple_of(config.quant_group) {
        return Err(Error::HeadDimNotDivisible { head_dim, quant_group: config.quant_group });
    }
    Ok(head_dim / config.quant_group)
}

/// Checks a tensor's shape against the one that it must have.
pub(crate) fn equal(input: &'static str, shape: &Shape, expected: &[usize], reason: &'static str) -> Result<(), Error> {
    if shape.len() != expected.len() {
        return Err(Error::RankMismatch { input, shape: shape.clone(), expected: expected.len() });
    }
    match shape.iter().zip(expected).position(|(got, expected)| got != expected) {
        None => Ok(()),
        Some(axis) => Err(Error::ShapeMismatch {
            input,
            shape: shape.clone(),
            axis,
            got: shape[axis],
            expected: expected[axis],
            reason,
        }),
    }
}

/// The axes of a tensor that must have `N` of them.
pub(crate) fn rank<const N: usize>(input: &'static str, shape: &Shape) -> Result<[usize; N], Error> {
    shape[..].try_into().map_err(|_| Error::RankMismatch { input, shape: shape.clone(), expected: N })
}

/// Checks the rank of a scale that is needed. One without elements, for a cache that has some, is what exports give in
/// place of none.
pub(crate) fn scale_rank<const N: usize>(shape: &Shape, cache: &Shape, quant: Option<QuantBit>) -> Result<(), Error> {
    match quant {
        Some(bits) if shape.contains(&0) && !cache.contains(&0) => Err(Error::ScaleMissing { quant_bit: bits.code() }),
        _ => rank::<N>("scale", shape).map(|_| ()),
    }
}

pub(crate) fn scalar_or_one_axis(input: &'static str, shape: &Shape) -> Result<(), Error> {
    if shape.len() <= 1 { Ok(()) } else { Err(Error::RankMismatch { input, shape: shape.clone(), expected: 0 }) }
}
