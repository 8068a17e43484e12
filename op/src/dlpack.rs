//! Tensors of other frameworks, by DLPack.

use std::slice;

pub use dlpark::DlpackFlags;
pub use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensorVersioned, DLTensor};
use kvcache_schema::ElementType;

pub use crate::error::DlpackError;
use crate::error::Error;
use crate::tensor::{Defect, Shape, TensorMut, TensorRef};

/// No tensor of the operators has more dimensions than 6; a `DLTensor` with more than this is not one.
const MAX_RANK: usize = 64;

impl TensorRef<'_> {
    /// The tensor that `tensor` describes; `input` is its name in errors. int4 elements are packed, element 2i in the
    /// low nibble of byte i. Other strides than row-major order has are reported by the call's checks, as are
    /// wrong types and shapes.
    ///
    /// # Errors
    /// [`DlpackError::DeviceMemory`], [`DlpackError::UnknownElementType`], [`DlpackError::InvalidDlTensor`].
    ///
    /// # Safety
    /// `shape` and, if not null, `strides` of `tensor` are valid for reads of `ndim` numbers. For the lifetime, if
    /// the tensor is contiguous, its memory is valid for reads, and nothing writes it.
    pub unsafe fn from_dlpack(input: &'static str, tensor: &DLTensor) -> Result<Self, Error> {
        on_host(input, tensor.device)?;
        let element = element_of(input, tensor.dtype)?;
        // SAFETY: this function's conditions.
        let Described { shape, data, contiguous } = unsafe { described(input, tensor) }?;
        // SAFETY: the memory is valid for reads of this type and shape where there is no defect; where there is one,
        // every check refuses the tensor before it is accessed.
        let mut tensor = unsafe { Self::from_raw_parts(element, shape, data) };
        tensor.defect = (!contiguous).then_some(Defect::NotContiguous);
        Ok(tensor)
    }
}

impl TensorMut<'_> {
    /// The tensor that `tensor` describes, as [`TensorRef::from_dlpack`].
    ///
    /// # Errors
    /// Those of [`TensorRef::from_dlpack`].
    ///
    /// # Safety
    /// `shape` and, if not null, `strides` of `tensor` are valid for reads of `ndim` numbers. For the lifetime, if
    /// the tensor is contiguous, its memory is as [`from_raw_parts`](Self::from_raw_parts) requires.
    pub unsafe fn from_dlpack(input: &'static str, tensor: &DLTensor) -> Result<Self, Error> {
        // SAFETY: this function's conditions, which include those of a tensor that is read.
        unsafe { TensorRef::from_dlpack(input, tensor) }.map(Self)
    }
}

/// The operators' name of a type of DLPack; `input` is what has it, in errors.
///
/// # Errors
/// [`DlpackError::UnknownElementType`].
pub fn element_of(input: &'static str, dtype: DLDataType) -> Result<ElementType, Error> {
    let DLDataType { code, bits, lanes } = dtype;
    let is_it = |known: &ElementType| (known.dlpack(), known.bits(), 1) == (code.0, bits.into(), lanes);
    let unknown = || DlpackError::UnknownElementType { input, code: code.0, bits, lanes }.into();
    ElementType::ALL.into_iter().find(is_it).ok_or_else(unknown)
}

/// What a `DLTensor` says of its memory.
#[derive(Debug)]
pub struct Described {
    /// Its shape, in elements.
    pub shape: Shape,
    /// Its first byte.
    pub data: *mut u8,
    /// Whether it is contiguous in row-major order.
    pub contiguous: bool,
}

/// Checks that memory is the host's; `input` is the tensor's name in errors.
///
/// # Errors
/// [`DlpackError::DeviceMemory`].
pub fn on_host(input: &'static str, device: DLDevice) -> Result<(), Error> {
    let name = match device.device_type {
        DLDeviceType::CPU | DLDeviceType::CUDAHOST | DLDeviceType::ROCMHOST => return Ok(()),
        DLDeviceType::CUDA => "cuda".to_owned(),
        DLDeviceType::METAL => "metal".to_owned(),
        DLDeviceType::ROCM => "rocm".to_owned(),
        DLDeviceType::CUDAMANAGED => "cuda managed".to_owned(),
        other => format!("DLPack type {}", other.0),
    };
    Err(DlpackError::DeviceMemory { input, device: format!("{name}:{}", device.device_id) }.into())
}

/// Shape, address and order of a tensor; `input` is its name in errors.
///
/// # Errors
/// [`DlpackError::InvalidDlTensor`].
///
/// # Safety
/// `shape` and, if not null, `strides` of `tensor` are valid for reads of `ndim` numbers.
pub unsafe fn described(input: &'static str, tensor: &DLTensor) -> Result<Described, Error> {
    let invalid = |reason: String| Error::from(DlpackError::InvalidDlTensor { input, reason });
    let rank = usize::try_from(tensor.ndim)
        .ok()
        .filter(|&rank| rank <= MAX_RANK)
        .ok_or_else(|| invalid(format!("ndim is {}, expected 0 to {MAX_RANK}", tensor.ndim)))?;
    // SAFETY: valid for reads of `ndim` numbers.
    let dims = unsafe { numbers(tensor.shape, rank) }.ok_or_else(|| invalid("shape is null".to_owned()))?;
    let shape = dims
        .iter()
        .map(|&len| {
            usize::try_from(len).map_err(|_| invalid(format!("shape is {dims:?}, expected no negative length")))
        })
        .collect::<Result<Shape, Error>>()?;
    // SAFETY: valid for reads of `ndim` numbers if it is not null.
    let strides = unsafe { numbers(tensor.strides, rank) };
    let contiguous = strides.is_none_or(|strides| is_row_major(dims, strides));
    if tensor.data.is_null() && !dims.contains(&0) {
        return Err(invalid("data is null".to_owned()));
    }
    let offset = usize::try_from(tensor.byte_offset).map_err(|error| invalid(format!("byte_offset: {error}")))?;
    Ok(Described { shape, data: tensor.data.cast::<u8>().wrapping_add(offset), contiguous })
}

/// The numbers behind a pointer; `None` if it is null though there are some.
///
/// # Safety
/// If it is not null, `data` is valid for reads of `len` numbers for the lifetime.
unsafe fn numbers<'a>(data: *const i64, len: usize) -> Option<&'a [i64]> {
    match (len, data.is_null()) {
        (0, _) => Some(&[]),
        (_, true) => None,
        // SAFETY: not null, so valid for reads of `len` numbers.
        (_, false) => Some(unsafe { slice::from_raw_parts(data, len) }),
    }
}

/// Whether strides are row-major, where they matter: along axes of more than one element, of a tensor
/// that has elements.
fn is_row_major(dims: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1_i64;
    dims.contains(&0)
        || dims.iter().zip(strides).rev().all(|(&len, &stride)| {
            let fits = len == 1 || stride == expected;
            expected = expected.wrapping_mul(len);
            fits
        })
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::ptr;

    use super::*;

    const FLOAT32: DLDataType = DLDataType { code: DLDataTypeCode::FLOAT, bits: 32, lanes: 1 };

    fn tensor(data: &mut [f32], shape: &mut [i64], strides: Option<&mut [i64]>) -> DLTensor {
        DLTensor {
            data: data.as_mut_ptr().cast::<c_void>(),
            device: DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
            ndim: shape.len() as i32,
            dtype: FLOAT32,
            shape: shape.as_mut_ptr(),
            strides: strides.map_or(ptr::null_mut(), <[i64]>::as_mut_ptr),
            byte_offset: 0,
        }
    }

    fn parsed(tensor: &DLTensor) -> Result<TensorRef<'_>, Error> {
        // SAFETY: made by `tensor`, of slices of `ndim` numbers that are still there; nothing reads the memory.
        unsafe { TensorRef::from_dlpack("cache", tensor) }
    }

    #[test]
    fn a_tensor_has_its_type_shape_and_address() {
        let (mut data, mut shape, mut strides) = ([0.0; 7], [2, 1, 3], [3, 99, 1]);
        let mut described = tensor(&mut data, &mut shape, Some(&mut strides));
        described.byte_offset = 4;
        let TensorRef { element, shape, data: at, defect, .. } = parsed(&described).unwrap();
        assert_eq!((element, &*shape, defect), (ElementType::Float32, [2, 1, 3].as_slice(), None));
        assert_eq!(at, data[1..].as_mut_ptr().cast());
    }

    #[test]
    fn each_type_is_known_by_its_code() {
        let of = |code, bits, lanes| element_of("cache", DLDataType { code, bits, lanes }).ok();
        assert_eq!(of(DLDataTypeCode::FLOAT, 16, 1), Some(ElementType::Float16));
        assert_eq!(of(DLDataTypeCode::BFLOAT, 16, 1), Some(ElementType::BFloat16));
        assert_eq!(of(DLDataTypeCode::INT, 8, 1), Some(ElementType::Int8));
        assert_eq!(of(DLDataTypeCode::INT, 4, 1), Some(ElementType::Int4));
        assert_eq!(of(DLDataTypeCode::INT, 64, 1), Some(ElementType::Int64));
        assert_eq!(of(DLDataTypeCode::UINT, 8, 1), Some(ElementType::UInt8));
        for (code, bits, lanes) in
            [(DLDataTypeCode::UINT, 16, 1), (DLDataTypeCode::BFLOAT, 32, 1), (DLDataTypeCode::FLOAT, 32, 4)]
        {
            assert_eq!(of(code, bits, lanes), None);
        }
    }

    #[test]
    fn other_strides_than_row_majors_are_a_defect() {
        let mut data = [0.0; 6];
        for (mut shape, mut strides, contiguous) in [
            ([2, 3], [3, 1], true),
            ([2, 3], [1, 2], false),
            ([2, 3], [6, 1], false),
            ([1, 3], [77, 1], true),
            ([0, 3], [77, 5], true),
        ] {
            let defect = parsed(&tensor(&mut data, &mut shape, Some(&mut strides))).unwrap().defect;
            assert_eq!(defect.is_none(), contiguous, "{shape:?} {strides:?}");
        }
        assert_eq!(parsed(&tensor(&mut data, &mut [2, 3], None)).unwrap().defect, None);
    }

    #[test]
    fn what_is_no_tensor_is_refused_with_its_name() {
        let (mut data, mut shape) = ([0.0; 6], [2, 3]);
        let good = tensor(&mut data, &mut shape, None);
        let refused = |tensor: DLTensor| parsed(&tensor).unwrap_err();
        let device = DLDevice { device_type: DLDeviceType::CUDA, device_id: 1 };
        assert_eq!(
            refused(DLTensor { device, ..good }),
            DlpackError::DeviceMemory { input: "cache", device: "cuda:1".to_owned() }.into()
        );
        let dtype = DLDataType { code: DLDataTypeCode::UINT, bits: 16, lanes: 1 };
        assert_eq!(refused(DLTensor { dtype, ..good }).kind(), "element_type");
        for broken in [
            DLTensor { ndim: -1, ..good },
            DLTensor { ndim: 65, ..good },
            DLTensor { shape: ptr::null_mut(), ..good },
            DLTensor { data: ptr::null_mut(), ..good },
            DLTensor { shape: [2, -3].as_mut_ptr(), ..good },
        ] {
            let error = refused(broken);
            assert_eq!(error.kind(), "invalid_dltensor");
            assert!(error.to_string().starts_with("cache"), "{error}");
        }
    }
}
