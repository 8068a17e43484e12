//! candle's storage as the operator's tensors: borrowed, under candle's own locks; and a cache of them as the
//! manager's memory.

use candle_core::{CpuStorage, Error, Layout, Result, Tensor, WithDType, bail};
use kvcache_manager::{CacheSpec, HostMemory};
use kvcache_op::{Element, Rayon, TensorMut};
use ndarray::{Array, ArrayView, ArrayViewMut, IxDyn};

use crate::in_place::in_place1;

/// Storage that is read, of type `T`.
pub(crate) fn view<'a, T: WithDType>(
    name: &str,
    storage: &'a CpuStorage,
    layout: &Layout,
) -> Result<ArrayView<'a, T, IxDyn>> {
    let (from, to) = contiguous(name, layout)?;
    let elements: &[T] = storage.as_slice()?;
    ArrayView::from_shape(IxDyn(layout.dims()), &elements[from..to]).map_err(Error::wrap)
}

/// A copy of a tensor of type `T`, for inputs that might share storage with what is written: candle's lock of it is
/// then not held during the call.
pub(crate) fn copy<T: WithDType>(tensor: &Tensor) -> Result<Array<T, IxDyn>> {
    let elements = tensor.flatten_all()?.to_vec1::<T>()?;
    Array::from_shape_vec(IxDyn(tensor.dims()), elements).map_err(Error::wrap)
}

/// Gives storage that is written, a cache or its scale, to `body`.
pub(crate) fn with_mut<R>(
    name: &str,
    quant_bit: i64,
    storage: &mut CpuStorage,
    layout: &Layout,
    body: impl FnOnce(TensorMut<'_>) -> Result<R>,
) -> Result<R> {
    let (from, to) = contiguous(name, layout)?;
    let dims = layout.dims();
    match (storage, quant_bit) {
        (CpuStorage::F32(elements), _) => body((&mut array(dims, &mut elements[from..to])?).into()),
        (CpuStorage::F16(elements), _) => body((&mut array(dims, &mut elements[from..to])?).into()),
        (CpuStorage::U8(codes), 4) => {
            let mut dims = dims.to_vec();
            if let Some(head_dim) = dims.last_mut() {
                *head_dim *= 2;
            }
            body(TensorMut::int4(&dims[..], &mut codes[from..to]))
        }
        (CpuStorage::U8(codes), _) => {
            let codes = &mut codes[from..to];
            // SAFETY: an i8 has the size and alignment of a u8, every byte is one, and `codes` is not used meanwhile.
            let codes = unsafe { std::slice::from_raw_parts_mut(codes.as_mut_ptr().cast::<i8>(), codes.len()) };
            body((&mut array(dims, codes)?).into())
        }
        _ => bail!("{name} is of another type than F32, F16 or, for codes, U8"),
    }
}

fn array<'a, T: Element>(dims: &[usize], elements: &'a mut [T]) -> Result<ArrayViewMut<'a, T, IxDyn>> {
    ArrayViewMut::from_shape(IxDyn(dims), elements).map_err(Error::wrap)
}

/// Where the elements of a contiguous layout are.
fn contiguous(name: &str, layout: &Layout) -> Result<(usize, usize)> {
    match layout.contiguous_offsets() {
        Some(part) => Ok(part),
        None => bail!("{name} is not contiguous (shape {:?})", layout.dims()),
    }
}

/// Gives `cache` and `scale`, made for `spec`, to `body` as the memory that the manager's plans are applied to.
///
/// # Errors
/// Tensors that are not those of `spec`, and what `body` returns.
pub fn with_memory<R>(
    spec: &CacheSpec,
    cache: &Tensor,
    scale: Option<&Tensor>,
    body: impl FnOnce(&mut HostMemory<'_>) -> Result<R>,
) -> Result<R> {
    let host = |cache: TensorMut<'_>, scale: Option<TensorMut<'_>>| {
        body(&mut HostMemory::new(spec, cache, scale, &Rayon).map_err(Error::wrap)?)
    };
    in_place1(cache, |cache| {
        with_mut("cache", spec.attributes().quant_bit, cache.0, cache.1, |cache| match scale {
            None => host(cache, None),
            Some(scale) => {
                in_place1(scale, |scale| with_mut("scale", 0, scale.0, scale.1, |scale| host(cache, Some(scale))))
            }
        })
    })
}
