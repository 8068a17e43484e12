//! tract's tensors as the operator's.

use kvcache_op::{Element, ElementType, TensorMut, TensorRef};
use tract_onnx::tract_hir::internal::*;

/// A tensor that is read.
pub(crate) fn read<'a>(name: &str, value: &'a TValue) -> TractResult<TensorRef<'a>> {
    // SAFETY: a tensor of tract's is contiguous, initialized, and valid as long as it is borrowed.
    Ok(unsafe { TensorRef::from_raw_parts(element(name, value)?, value.shape(), value.as_bytes().as_ptr()) })
}

/// A tensor that is written in place, though tract shares it.
///
/// # Safety
/// For the lifetime, nobody else reads or writes what the call writes.
pub(crate) unsafe fn in_place<'a>(name: &str, value: &'a TValue) -> TractResult<TensorMut<'a>> {
    let data = value.as_bytes().as_ptr().cast_mut();
    // SAFETY: a tensor of tract's is contiguous, initialized, and valid as long as it is borrowed; its bytes are on the
    // heap, writable, and nobody else accesses those that the call writes.
    Ok(unsafe { TensorMut::from_raw_parts(element(name, value)?, value.shape(), data) })
}

/// A new tensor.
pub(crate) fn output<T: Datum + Element>(tensor: &mut Tensor) -> TractResult<TensorMut<'_>> {
    let shape = kvcache_op::Shape::from(tensor.shape());
    let data = tensor.as_ptr_mut::<T>()?.cast();
    // SAFETY: the tensor is borrowed, of this type and shape, and contiguous.
    Ok(unsafe { TensorMut::from_raw_parts(T::TYPE, shape, data) })
}

fn element(name: &str, value: &TValue) -> TractResult<ElementType> {
    match value.datum_type() {
        DatumType::F32 => Ok(ElementType::Float32),
        DatumType::F16 => Ok(ElementType::Float16),
        DatumType::I8 => Ok(ElementType::Int8),
        DatumType::I64 => Ok(ElementType::Int64),
        other => bail!("{name} is of type {other:?}, expected F32, F16, I8 or I64"),
    }
}
