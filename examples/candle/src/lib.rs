//! `KeyValueCache` and `MultiHeadCacheAttention` on [candle](https://docs.rs/candle-core)'s tensors.
//!
//! Caches are candle's tensors too, written in place: all clones and views of one see it, and nothing of a cache is
//! copied. candle has no int8, so the codes of a quantized cache are bytes (`DType::U8`): with `quant_bit` 8 in the
//! cache's shape, with `quant_bit` 4 two in a byte, the last axis `head_dim / 2`.

use std::cell::RefCell;

use candle_core::{CpuStorage, DType, Device, Error, InplaceOp1, Layout, Result, Tensor, WithDType, bail};
use half::f16;
use kvcache_manager::{CacheSpec, HostMemory};
use kvcache_op::{
    CacheAttentionInputs, Element, ElementType, IndexInputs, Inputs, KeyValueCache, MultiHeadCacheAttention, Rayon,
    TensorMut,
};
use ndarray::{Array, Array3, IxDyn};

/// Stores `current_key` and `current_value` in `cache` (and `scale`), and returns `key` and `value` of all tokens of
/// all sequences: (`kvstarts[B]`, H * `num_repeat`, Dh), of the type of `current_key`, F32 or F16.
///
/// # Errors
/// The operator's own, before anything is written; tensors on a device or of other types.
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
        [key, value]: [&Tensor; 2],
        indices: &IndexInputs<'_>,
        cache: &Tensor,
        scale: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let (key, value) = (copy::<T>(key)?, copy::<T>(value)?);
        let inputs = Inputs { current_key: (&key).into(), current_value: (&value).into(), indices: indices.clone() };
        let (key, value) = with_cache(op.attributes().quant_bit, cache, scale, |cache, scale| {
            op.run_alloc::<T>(&inputs, cache, scale, &Rayon).map_err(Error::wrap)
        })?;
        Ok((tensor(key)?, tensor(value)?))
    }
    match current_key.dtype() {
        DType::F32 => of::<f32>(op, [current_key, current_value], indices, cache, scale),
        DType::F16 => of::<f16>(op, [current_key, current_value], indices, cache, scale),
        other => bail!("current_key is of type {other:?}, expected F32 or F16"),
    }
}

/// Stores `current_key` and `current_value` in `cache` (and `scale`), then attends with `query` straight over the
/// cache. Returns `attn_output`: (`seqstarts[B]`, Hq, Dh), of the type of `query`, F32 or F16.
///
/// # Errors
/// As [`key_value_cache`].
pub fn multi_head_cache_attention(
    op: &MultiHeadCacheAttention,
    [query, current_key, current_value]: [&Tensor; 3],
    indices: &IndexInputs<'_>,
    cache: &Tensor,
    scale: Option<&Tensor>,
) -> Result<Tensor> {
    fn of<T: WithDType + Element>(
        op: &MultiHeadCacheAttention,
        [query, key, value]: [&Tensor; 3],
        indices: &IndexInputs<'_>,
        cache: &Tensor,
        scale: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (query, key, value) = (copy::<T>(query)?, copy::<T>(key)?, copy::<T>(value)?);
        let stored = Inputs { current_key: (&key).into(), current_value: (&value).into(), indices: indices.clone() };
        let decoding_batches = (&0).into();
        let query = (&query).into();
        let inputs = CacheAttentionInputs { query, stored, decoding_batches, attn_mask: None, head_sink: None };
        let [output]: [Array3<T>; 1] = with_cache(op.attributes().cache.quant_bit, cache, scale, |cache, scale| {
            op.check(&inputs, cache, scale).and_then(|call| call.run_alloc(&Rayon)).map_err(Error::wrap)
        })?;
        tensor(output)
    }
    match query.dtype() {
        DType::F32 => of::<f32>(op, [query, current_key, current_value], indices, cache, scale),
        DType::F16 => of::<f16>(op, [query, current_key, current_value], indices, cache, scale),
        other => bail!("query is of type {other:?}, expected F32 or F16"),
    }
}

/// Hands `cache` and `scale`, made for `spec`, to `body` as the memory that the manager's plans are applied to.
///
/// # Errors
/// Tensors that do not fit `spec`, and what `body` returns.
pub fn with_memory<R>(
    spec: &CacheSpec,
    cache: &Tensor,
    scale: Option<&Tensor>,
    body: impl FnOnce(&mut HostMemory<'_>) -> Result<R>,
) -> Result<R> {
    with_cache(spec.attributes().quant_bit, cache, scale, |cache, scale| {
        body(&mut HostMemory::new(spec, cache, scale, &Rayon).map_err(Error::wrap)?)
    })
}

/// A copy of a tensor's elements, whose storage candle then does not lock during the call.
fn copy<T: WithDType>(tensor: &Tensor) -> Result<Array<T, IxDyn>> {
    let elements = tensor.flatten_all()?.to_vec1::<T>()?;
    Array::from_shape_vec(IxDyn(tensor.dims()), elements).map_err(Error::wrap)
}

fn tensor<T: WithDType>(array: Array3<T>) -> Result<Tensor> {
    let shape = array.dim();
    Tensor::from_vec(array.into_raw_vec_and_offset().0, shape, &Device::Cpu)
}

/// Hands cache and scale to `body`, to be written under candle's locks.
fn with_cache<R>(
    quant_bit: i64,
    cache: &Tensor,
    scale: Option<&Tensor>,
    body: impl FnOnce(TensorMut<'_>, Option<TensorMut<'_>>) -> Result<R>,
) -> Result<R> {
    in_place(cache, |storage, layout| {
        let cache = written("cache", quant_bit, storage, layout)?;
        let Some(scale) = scale else { return body(cache, None) };
        in_place(scale, |storage, layout| body(cache, Some(written("scale", 0, storage, layout)?)))
    })
}

/// An operation in place, which is made once.
struct Once<F>(RefCell<Option<F>>);

impl<F: FnOnce(&mut CpuStorage, &Layout) -> Result<()>> InplaceOp1 for Once<F> {
    fn name(&self) -> &'static str {
        "key_value_cache"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        self.0.take().map_or_else(|| bail!("an operation in place has been run twice"), |body| body(storage, layout))
    }
}

/// Hands a tensor's storage to `body`; returns what `body` does.
fn in_place<R>(tensor: &Tensor, body: impl FnOnce(&mut CpuStorage, &Layout) -> Result<R>) -> Result<R> {
    let mut result = None;
    tensor.inplace_op1(&Once(RefCell::new(Some(|storage: &mut CpuStorage, layout: &Layout| {
        result = Some(body(storage, layout)?);
        Ok(())
    }))))?;
    result.ok_or_else(|| Error::msg("an operation in place has not been run"))
}

/// The storage of a cache or its scale as the operator's tensor.
fn written<'a>(name: &str, quant_bit: i64, storage: &'a mut CpuStorage, layout: &Layout) -> Result<TensorMut<'a>> {
    let Some((from, to)) = layout.contiguous_offsets() else {
        bail!("{name} is not contiguous (shape {:?})", layout.dims())
    };
    let mut dims = layout.dims().to_vec();
    let (element, data) = match storage {
        CpuStorage::F32(elements) => (ElementType::Float32, elements[from..to].as_mut_ptr().cast::<u8>()),
        CpuStorage::F16(elements) => (ElementType::Float16, elements[from..to].as_mut_ptr().cast()),
        CpuStorage::U8(codes) if quant_bit == 4 => {
            dims.last_mut().into_iter().for_each(|head_dim| *head_dim *= 2);
            (ElementType::Int4, codes[from..to].as_mut_ptr())
        }
        CpuStorage::U8(codes) => (ElementType::Int8, codes[from..to].as_mut_ptr()),
        _ => bail!("{name} is of another type than F32, F16 or, for codes, U8"),
    };
    // SAFETY: `from..to` are the elements of these dimensions, in row-major order, and borrowed as long as the tensor.
    Ok(unsafe { TensorMut::from_raw_parts(element, &dims[..], data) })
}
