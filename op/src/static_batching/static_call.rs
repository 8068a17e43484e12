//! A checked call: the shapes of rank 4 and 6, and the index inputs that follow from them.

use kvcache_kernels::{Addressing, AlikeSequences, Indices};
use kvcache_schema::{ElementType, StaticCacheDims};
use smallvec::SmallVec;

use crate::config::StaticConfig;
use crate::error::Error;
use crate::operands::Operand;
use crate::validate::stores::{CheckedTensors, State, Strides, tensors};
use crate::validate::{equal_type, indices, shapes};

/// What is known of a call of which everything but the outputs has been checked.
pub(super) struct CheckedStaticCall {
    pub(super) tensors: CheckedTensors,
    pub(super) sequences: AlikeSequences,
    /// `start_pos` + S.
    pub(super) kvlen: usize,
}

/// Checks everything but the outputs. The types of `current_key`, `current_value`, `cache` and `scale` go together.
pub(super) fn check<'a>(
    config: &StaticConfig,
    current: [&Operand<'a>; 2],
    start_pos: &Operand<'a>,
    mut state: State<'_, 'a>,
) -> Result<CheckedStaticCall, Error> {
    // A scale that is given without quantization is left untouched, and may be anything.
    state.scale = config.cache.quant.and(state.scale);
    equal_type("start_pos", start_pos.tensor.element, ElementType::Int64)?;

    let StaticDims { dims, seqlen, max_s, stride } = static_shapes(config, current, start_pos, state)?;
    let t1 = current[0].tensor.element;
    let tensors = tensors(&config.cache, t1, Some(current), [("start_pos", start_pos)], state, dims)?;

    let got = indices::values(&start_pos.tensor)[0];
    let Ok(start_pos) = usize::try_from(got) else {
        return Err(Error::StartPosNegative { b: None, got });
    };
    let Some(kvlen) = start_pos.checked_add(seqlen).filter(|&kvlen| kvlen <= max_s) else {
        return Err(Error::PositionRange { start_pos, seqlen, max_s });
    };
    Ok(CheckedStaticCall { tensors, sequences: AlikeSequences { seqlen, start_pos, stride }, kvlen })
}

/// The dimensions of a call, on which all inputs agree.
struct StaticDims {
    /// B, H and Dh, and the strides of `cache` and `scale`.
    dims: ([usize; 3], Strides),
    seqlen: usize,
    /// Positions of each sequence in the cache (MaxS).
    max_s: usize,
    /// Slots from a sequence to the next.
    stride: usize,
}

/// Checks ranks, then shapes.
fn static_shapes(
    config: &StaticConfig,
    current: [&Operand<'_>; 2],
    start_pos: &Operand<'_>,
    State { cache, scale }: State<'_, '_>,
) -> Result<StaticDims, Error> {
    let [key, value] = current.map(|operand| &operand.tensor.shape);
    let (start_pos, cache) = (&start_pos.tensor.shape, &cache.tensor.shape);
    let scale = scale.map(|scale| &scale.tensor.shape);
    let [batch, seqlen, num_heads, head_dim] = shapes::rank("current_key", key)?;
    shapes::rank::<4>("current_value", value)?;
    shapes::scalar_or_one_axis("start_pos", start_pos)?;
    let cache_shape = shapes::rank("cache", cache)?;
    if let Some(scale) = scale {
        shapes::scale_rank::<6>(scale, cache, config.cache.quant)?;
    }

    shapes::equal("current_value", value, key, "as in current_key")?;
    shapes::equal("start_pos", start_pos, &[1][..start_pos.len()], "a single number")?;
    let num_layer = config.cache.num_layer;
    let dims = StaticCacheDims { num_layer, num_heads, inner: head_dim, ..config.layout.dims(cache_shape) };
    let reason = "by cache_layout, num_layer and the shape of current_key";
    shapes::equal("cache", cache, &config.layout.shape(dims), reason)?;
    let scale_dims = StaticCacheDims { inner: shapes::scales_per_head(&config.cache, head_dim)?, ..dims };
    if let Some(scale) = scale {
        let expected = config.layout.shape(scale_dims);
        shapes::equal("scale", scale, &expected, "by the shape of cache and quant_group")?;
    }
    let StaticCacheDims { max_b, max_s, .. } = dims;
    if batch > max_b {
        return Err(Error::BatchTooLarge { batch, max_b });
    }
    let strides = config.layout.strides(dims);
    let stride = strides.map_or(0, |strides| strides.sequence);
    let strides = [strides, config.layout.strides(scale_dims)].map(|strides| strides.map(|strides| strides.slot));
    Ok(StaticDims { dims: ([batch, num_heads, head_dim], strides), seqlen, max_s, stride })
}

/// The index inputs of `KeyValueCache` in offset mode for sequences that are alike. Allocates nothing for up to 64 of
/// them.
pub(crate) struct StaticIndices {
    seqstarts: SmallVec<[i64; 65]>,
    kvstarts: SmallVec<[i64; 65]>,
    start_pos: SmallVec<[i64; 64]>,
    cachestarts: SmallVec<[i64; 64]>,
}

impl StaticIndices {
    /// The inputs of `batch` sequences whose tokens, in all, can be counted.
    pub(crate) fn new(batch: usize, &AlikeSequences { seqlen, start_pos, stride }: &AlikeSequences) -> Self {
        let multiples = |len: usize, step: usize| (0..len).map(move |b| (b * step) as i64);
        Self {
            seqstarts: multiples(batch + 1, seqlen).collect(),
            kvstarts: multiples(batch + 1, start_pos + seqlen).collect(),
            start_pos: SmallVec::from_elem(start_pos as i64, batch),
            cachestarts: multiples(batch, stride).collect(),
        }
    }

    pub(crate) fn indices(&self) -> Indices<'_> {
        Indices {
            seqstarts: &self.seqstarts,
            kvstarts: &self.kvstarts,
            start_pos: &self.start_pos,
            addressing: Addressing::Offset { cachestarts: &self.cachestarts },
        }
    }
}
