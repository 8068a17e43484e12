//! The operators as functions of candle's tensors.

use candle_core::{DType, Device, Error, Result, Tensor, WithDType, bail};
use half::f16;
use kvcache_op::{
    CacheAttentionInputs, Element, IndexInputs, Inputs, KeyValueCache, MultiHeadCacheAttention, Rayon, TensorMut,
    TensorRef,
};
use ndarray::{Array3, ArrayView, IxDyn};

use crate::bytes::{copy, view, with_mut};
use crate::in_place::{in_place1, in_place3};

/// Stores `current_key` and `current_value` in `cache` (and `scale`), and gives back `key` and `value` of all tokens of
/// all sequences: (`kvstarts[B]`, H * `num_repeat`, Dh), of the type of `current_key`, F32 or F16.
///
/// # Errors
/// The operator's own, before anything is written; tensors on a device or of other types; tensors that share storage
/// with `cache`.
pub fn key_value_cache(
    op: &KeyValueCache,
    current_key: &Tensor,
    current_value: &Tensor,
    indices: &IndexInputs<'_>,
    cache: &Tensor,
    scale: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    fn of<T: WithDType + Element>(
        op: &KeyValueCache,
        current: [&Tensor; 2],
        indices: &IndexInputs<'_>,
        cache: &Tensor,
        scale: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let (key, value) = store::<T, _>(op.attributes().quant_bit, current, indices, cache, scale, |stored| {
            let Stored { inputs, cache, scale } = stored;
            op.run_alloc::<T>(&inputs, cache, scale, &Rayon).map_err(Error::wrap)
        })?;
        Ok((tensor(key)?, tensor(value)?))
    }
    let current = [current_key, current_value];
    match current_key.dtype() {
        DType::F32 => of::<f32>(op, current, indices, cache, scale),
        DType::F16 => of::<f16>(op, current, indices, cache, scale),
        other => bail!("current_key is of type {other:?}, expected F32 or F16"),
    }
}

/// Stores `current_key` and `current_value` in `cache` (and `scale`), then attends with `query` straight over the
/// cache. Gives `attn_output`: (`seqstarts[B]`, Hq, Dh), of the type of `query`, F32 or F16. The first
/// `decoding_batches` sequences have no causal mask.
///
/// # Errors
/// Those of [`key_value_cache`].
#[expect(clippy::too_many_arguments, reason = "the operator's inputs")]
pub fn multi_head_cache_attention(
    op: &MultiHeadCacheAttention,
    query: &Tensor,
    current_key: &Tensor,
    current_value: &Tensor,
    indices: &IndexInputs<'_>,
    decoding_batches: i64,
    cache: &Tensor,
    scale: Option<&Tensor>,
) -> Result<Tensor> {
    fn of<T: WithDType + Element>(
        op: &MultiHeadCacheAttention,
        query: &Tensor,
        current: [&Tensor; 2],
        indices: &IndexInputs<'_>,
        decoding_batches: i64,
        cache: &Tensor,
        scale: Option<&Tensor>,
    ) -> Result<Tensor> {
        let query = copy::<T>(query)?;
        tensor(store::<T, _>(op.attributes().cache.quant_bit, current, indices, cache, scale, |stored| {
            let Stored { inputs, cache, scale } = stored;
            let inputs = CacheAttentionInputs {
                query: (&query).into(),
                stored: inputs,
                decoding_batches: (&decoding_batches).into(),
                attn_mask: None,
            };
            op.check(&inputs, cache, scale).and_then(|call| call.run_alloc::<T>(&Rayon)).map_err(Error::wrap)
        })?)
    }
    let current = [current_key, current_value];
    match query.dtype() {
        DType::F32 => of::<f32>(op, query, current, indices, decoding_batches, cache, scale),
        DType::F16 => of::<f16>(op, query, current, indices, decoding_batches, cache, scale),
        other => bail!("query is of type {other:?}, expected F32 or F16"),
    }
}

/// What a call stores, and where.
struct Stored<'a> {
    inputs: Inputs<'a>,
    cache: TensorMut<'a>,
    scale: Option<TensorMut<'a>>,
}

/// Runs `body` with the storage of all tensors at hand: read locks of the current tokens, write locks of cache and
/// scale. candle refuses current tokens that share the cache's storage.
fn store<T: WithDType + Element, R>(
    quant_bit: i64,
    [current_key, current_value]: [&Tensor; 2],
    indices: &IndexInputs<'_>,
    cache: &Tensor,
    scale: Option<&Tensor>,
    body: impl FnOnce(Stored<'_>) -> Result<R>,
) -> Result<R> {
    in_place3(cache, current_key, current_value, |cache, key, value| {
        let (key, value) = (view::<T>("current_key", key.0, key.1)?, view::<T>("current_value", value.0, value.1)?);
        let inputs = Inputs { current_key: read(&key), current_value: read(&value), indices: indices.clone() };
        with_mut("cache", quant_bit, cache.0, cache.1, |cache| match scale {
            None => body(Stored { inputs, cache, scale: None }),
            Some(scale) => in_place1(scale, |scale| {
                with_mut("scale", 0, scale.0, scale.1, |scale| body(Stored { inputs, cache, scale: Some(scale) }))
            }),
        })
    })
}

fn read<'a, T: Element>(view: &'a ArrayView<'_, T, IxDyn>) -> TensorRef<'a> {
    view.into()
}

fn tensor<T: WithDType>(array: Array3<T>) -> Result<Tensor> {
    let shape = array.dim();
    let (elements, _) = array.into_raw_vec_and_offset();
    Tensor::from_vec(elements, shape, &Device::Cpu)
}
