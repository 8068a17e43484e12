//! Checks types, ranks and shapes, and that all inputs agree on B, H, Dh, L and MaxT.

use kvcache_kernels::{Geometry, Quant};
use kvcache_schema::shape::elements;
use kvcache_schema::{CacheDims, CacheMode, CacheStrides, ElementType, QuantBit, TypeCombination};

use super::alias_check::overflow;
use super::stores::StoreInputs;
use crate::config::{CacheConfig, Config};
use crate::error::Error;
use crate::operands::Operand;
use crate::tensor::Shape;

/// Checks the types of the inputs that are not indices against those rows of the table of types whose T1 is one of
/// `t1s`, which are the operator's, and those that `quant_type` has.
pub(crate) fn types(
    got: TypeCombination,
    quant_type: i64,
    current_value: ElementType,
    t1s: &'static [ElementType],
) -> Result<(), Error> {
    let TypeCombination { quant_bit, t1, t3, .. } = got;
    let legal = |t3| TypeCombination { t3, ..got }.is_legal() && got.quant_types().contains(&quant_type);
    if !legal(t3) {
        if t3.is_none() && ElementType::T3.into_iter().map(Some).any(legal) {
            return Err(Error::ScaleMissing { quant_bit });
        }
        return Err(Error::IllegalTypes { got, quant_type, t1s });
    }
    equal_type("current_value", current_value, t1)
}

/// Checks that a tensor has the one type that it may have.
pub(crate) fn equal_type(input: &'static str, got: ElementType, expected: ElementType) -> Result<(), Error> {
    if got == expected { Ok(()) } else { Err(Error::TypeMismatch { input, got, expected }) }
}

/// Checks ranks, then shapes. Without `current` tensors, H and Dh are what `cache` says. Gives the call's geometry, and
/// the slots of the cache (MaxT).
pub(super) fn check(
    config: &Config,
    t1: ElementType,
    inputs: &StoreInputs<'_, '_>,
) -> Result<(Geometry, usize), Error> {
    let [seqstarts, cachestarts, start_pos, cache] =
        [inputs.seqstarts, inputs.cachestarts, inputs.start_pos, inputs.cache].map(|input| &input.tensor.shape);
    // Without `kvstarts` there is nothing that could be wrong with it.
    let kvstarts = inputs.kvstarts.map_or(seqstarts, |kvstarts| &kvstarts.tensor.shape);
    let bounds = [("max_seqlen", inputs.max_seqlen), ("max_kvlen", inputs.max_kvlen)];
    let bounds = bounds.map(|(name, bound)| (name, &bound.tensor.shape));
    let current = inputs.current.map(|current| current.map(|operand| &operand.tensor.shape));
    let scale = inputs.scale.map(|scale| &scale.tensor.shape);
    if config.mode == CacheMode::Paged && cachestarts.len() == 1 {
        return Err(Error::LegacyPageTable { shape: cachestarts.clone() });
    }
    let mut current_dims = None;
    if let Some([key, value]) = current {
        current_dims = Some(rank::<3>("current_key", key)?);
        rank::<3>("current_value", value)?;
    }
    let [starts] = rank("seqstarts", seqstarts)?;
    let _: [usize; 1] = rank("kvstarts", kvstarts)?;
    let max_p = match config.mode {
        CacheMode::Offset => rank("cachestarts", cachestarts).map(|[_]| None)?,
        CacheMode::Paged => rank("cachestarts", cachestarts).map(|[_, max_p]| Some(max_p))?,
    };
    let _: [usize; 1] = rank("start_pos", start_pos)?;
    for (name, bound) in bounds {
        scalar_or_one_axis(name, bound)?;
    }
    let cache_shape = rank("cache", cache)?;
    if let Some(scale) = scale {
        match config.cache.static_scales {
            true => scale_rank::<3>(scale, cache, config.cache.quant)?,
            false => scale_rank::<5>(scale, cache, config.cache.quant)?,
        }
    }

    if let Some([key, value]) = current {
        equal("current_value", value, key, "as in current_key")?;
    }
    let Some(batch) = starts.checked_sub(1) else {
        let shape = seqstarts.clone();
        let reason = "as many as sequences, and the total";
        return Err(Error::ShapeMismatch { input: "seqstarts", shape, axis: 0, got: 0, expected: 1, reason });
    };
    equal("kvstarts", kvstarts, &[starts], "as in seqstarts")?;
    let expected: &[usize] = match max_p {
        None => &[batch],
        Some(max_p) => &[batch, max_p],
    };
    const PER_SEQUENCE: &str = "one for each sequence: one less than seqstarts";
    equal("cachestarts", cachestarts, expected, PER_SEQUENCE)?;
    equal("start_pos", start_pos, &[batch], PER_SEQUENCE)?;
    for (name, bound) in bounds {
        equal(name, bound, &[1][..bound.len()], "a single number")?;
    }

    let mut cache_dims = CacheDims { num_layer: config.cache.num_layer, ..config.layout.dims(cache_shape) };
    let mut reason = "by cache_layout and num_layer";
    if let Some([_, num_heads, head_dim]) = current_dims {
        cache_dims = CacheDims { num_heads, inner: head_dim, ..cache_dims };
        reason = "by cache_layout, num_layer and the shape of current_key";
    }
    equal("cache", cache, &config.layout.shape(cache_dims), reason)?;
    let scale_strides = if config.cache.static_scales {
        static_scales(scale, [cache_dims.num_layer, 2, cache_dims.num_heads])?
    } else {
        let scale_dims = CacheDims { inner: scales_per_head(&config.cache, cache_dims.inner)?, ..cache_dims };
        if let Some(scale) = scale {
            equal("scale", scale, &config.layout.shape(scale_dims), "by the shape of cache and quant_group")?;
        }
        config.layout.strides(scale_dims)
    };
    let CacheDims { max_t, num_heads, inner: head_dim, .. } = cache_dims;
    let strides = [config.layout.strides(cache_dims), scale_strides];
    let state = (inputs.cache, inputs.scale);
    Ok((geometry(&config.cache, t1, [batch, num_heads, head_dim], state, strides)?, max_t))
}

/// The geometry of a call whose shapes have been checked, by B, H and Dh, and by the strides of `cache` and of the
/// `scale` that it has or would have, `None` where they are too large.
pub(crate) fn geometry(
    config: &CacheConfig,
    t1: ElementType,
    [batch, num_heads, head_dim]: [usize; 3],
    (cache, scale): (&Operand<'_>, Option<&Operand<'_>>),
    strides: [Option<CacheStrides>; 2],
) -> Result<Geometry, Error> {
    let size = |name, operand: &Operand<'_>, strides: Option<CacheStrides>| {
        let shape = &operand.tensor.shape;
        strides.zip(elements(shape)).ok_or_else(|| overflow(name, shape))
    };
    let (cache_strides, cache_len) = size("cache", cache, strides[0])?;
    let quant = match (config.quant, scale) {
        (Some(bits), Some(scale)) => {
            let group = if config.static_scales { head_dim.max(1) } else { config.quant_group };
            let (strides, scale_len) = size("scale", scale, strides[1])?;
            Some(Quant { bits, group, rotated: config.rotated, t3: scale.tensor.element, scale_len, scale: strides })
        }
        _ => None,
    };
    let (layer_idx, t2) = (config.layer_idx, cache.tensor.element);
    Ok(Geometry { batch, num_heads, head_dim, layer_idx, t1, t2, quant, cache_len, cache: cache_strides })
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
