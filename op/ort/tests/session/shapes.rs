//! The function of newer runtimes that the library finds by its place in the table of functions.

use std::ffi::CStr;
use std::{ptr, slice};

use ort::AsPointer;
use ort::memory::Allocator;
use ort::sys::ONNXTensorElementDataType;
use ort::value::{DynTensor, TensorElementType};

use crate::api_1_24::type_and_shape_reference;
use crate::runtime::{base, environment};

#[test]
fn a_runtime_since_1_24_refers_to_the_type_and_shape_of_every_tensor() -> ort::Result<()> {
    environment();
    // SAFETY: `GetVersionString` gives a constant text that ends with NUL.
    let version = unsafe { CStr::from_ptr((base().GetVersionString)()) }.to_str().unwrap();
    let minor: u32 = version.split('.').nth(1).unwrap().parse().unwrap();
    let Some(reference) = type_and_shape_reference(base()) else {
        assert!(minor < 24, "{version}");
        return Ok(());
    };
    assert!(minor >= 24, "{version}");
    let types = [
        TensorElementType::Float32,
        TensorElementType::Float16,
        TensorElementType::Int8,
        TensorElementType::Int4,
        TensorElementType::Int64,
    ];
    let dims = [2i64, 3, 1, 0, 5, 7];
    for (expected, rank) in types.into_iter().flat_map(|element| (0..=dims.len()).map(move |rank| (element, rank))) {
        let tensor = DynTensor::new(&Allocator::default(), expected, &dims[..rank])?;
        let mut element = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
        let (mut address, mut len) = (ptr::null(), usize::MAX);
        // SAFETY: the tensor lives, and the three places are there to be written.
        unsafe { ort::Error::result_from_status(reference(tensor.ptr(), &mut element, &mut address, &mut len)) }?;
        assert_eq!((TensorElementType::from(element), len), (expected, rank));
        if rank > 0 {
            // SAFETY: `address` is that of the tensor's `len` dimensions, and the tensor lives.
            assert_eq!(unsafe { slice::from_raw_parts(address, len) }, &dims[..rank]);
        }
    }
    Ok(())
}
