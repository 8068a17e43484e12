//! ONNX Runtime's tensors as the operator's.
//!
//! A node has a dozen of them, and a call may move a few kilobytes only. `ort` makes a value of each that holds its type
//! with the names of its dimensions, in three allocations; asking the runtime for what the operator needs takes a third
//! off the cost of a node (2.3 to 1.6 us for a call of one token). So this module talks to the runtime itself: with
//! handles that the runtime has given in the same call, none of which outlives it, and with places for its answers.

use std::ffi::CStr;
use std::ptr::{self, NonNull};

#[cfg(feature = "cuda")]
use kvcache_op::cuda::{DeviceMut, DeviceRef};
use kvcache_op::{ElementType, Shape, TensorMut, TensorRef};
use kvcache_schema::{INPUTS, OUTPUTS};
use ort::operator::ComputeContext;
use ort::sys::{
    ONNXTensorElementDataType, OrtMemType, OrtMemoryInfo, OrtMemoryInfoDeviceType, OrtTensorTypeAndShapeInfo, OrtValue,
};
use ort::value::TensorElementType;
use ort::{AsPointer, ortsys};
use smallvec::{SmallVec, smallvec};

use crate::error::Error;

/// The operator's tensors in one call from ONNX Runtime, by position.
///
/// The runtime keeps their memory, contiguous and initialised, for the call, which is as long as it lends the context.
/// The operator modifies two of its inputs, the cache and the scale, and the caller hands them over for that.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a>(pub(crate) &'a ComputeContext);

impl<'a> Operands<'a> {
    /// The input at `index`, to be read.
    pub(crate) fn read(self, index: usize) -> Result<TensorRef<'a>, Error> {
        let tensor = self.input(index, Place::Cpu)?;
        let Tensor { element, shape, data } = tensor.ok_or(Error::Missing { name: INPUTS[index] })?;
        // SAFETY: the runtime keeps a tensor of this type and shape at this address until the context ends.
        Ok(unsafe { TensorRef::from_raw_parts(element, shape, data) })
    }

    /// The input at `index`, to be modified; `None` if the node does without it.
    pub(crate) fn modify(self, index: usize) -> Result<Option<TensorMut<'a>>, Error> {
        let tensor = self.input(index, Place::Cpu)?;
        // SAFETY: as above, and this input is in-out by the operator's definition.
        Ok(tensor.map(|Tensor { element, shape, data }| unsafe { TensorMut::from_raw_parts(element, shape, data) }))
    }

    /// The output at `index`, which the runtime makes with this shape.
    pub(crate) fn write(self, index: usize, shape: [usize; 3]) -> Result<TensorMut<'a>, Error> {
        let Tensor { element, shape, data } = self.output(index, shape, Place::Cpu)?;
        // SAFETY: as above, and the runtime has made this output for the operator to write.
        Ok(unsafe { TensorMut::from_raw_parts(element, shape, data) })
    }

    /// The input at `index` in the device's memory, to be read.
    #[cfg(feature = "cuda")]
    pub(crate) fn read_device(self, index: usize) -> Result<DeviceRef<'a>, Error> {
        let tensor = self.input(index, Place::Device)?;
        let Tensor { element, shape, data } = tensor.ok_or(Error::Missing { name: INPUTS[index] })?;
        // SAFETY: the runtime keeps a tensor of this type and shape at this address until its stream is through with the call.
        Ok(unsafe { DeviceRef::from_raw_parts(element, shape, data.addr() as u64) })
    }

    /// The input at `index` in the device's memory, to be modified; `None` if the node does without it.
    #[cfg(feature = "cuda")]
    pub(crate) fn modify_device(self, index: usize) -> Result<Option<DeviceMut<'a>>, Error> {
        let tensor = self.input(index, Place::Device)?;
        // SAFETY: as above, and this input is in-out by the operator's definition.
        Ok(tensor.map(|Tensor { element, shape, data }| unsafe {
            DeviceMut::from_raw_parts(element, shape, data.addr() as u64)
        }))
    }

    /// The output at `index` in the device's memory, which the runtime makes with this shape.
    #[cfg(feature = "cuda")]
    pub(crate) fn write_device(self, index: usize, shape: [usize; 3]) -> Result<DeviceMut<'a>, Error> {
        let Tensor { element, shape, data } = self.output(index, shape, Place::Device)?;
        // SAFETY: as above, and the runtime has made this output for the operator to write.
        Ok(unsafe { DeviceMut::from_raw_parts(element, shape, data.addr() as u64) })
    }

    fn input(self, index: usize, place: Place) -> Result<Option<Tensor>, Error> {
        let mut value = ptr::null();
        ortsys![unsafe KernelContext_GetInput(self.0.ptr(), index, &mut value)?];
        NonNull::new(value.cast_mut()).map(|value| Tensor::of(INPUTS[index], value, place)).transpose()
    }

    fn output(self, index: usize, shape: [usize; 3], place: Place) -> Result<Tensor, Error> {
        let name = OUTPUTS[index];
        let dims = shape.map(|dim| dim as i64);
        let mut value = ptr::null_mut();
        ortsys![unsafe KernelContext_GetOutput(self.0.ptr().cast_mut(), index, dims.as_ptr(), dims.len(), &mut value)?];
        let value = NonNull::new(value).ok_or(Error::Missing { name })?;
        Tensor::of(name, value, place)
    }
}

/// Where a tensor must lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In memory that the CPU reaches.
    Cpu,
    /// In memory of the provider's device.
    #[cfg(feature = "cuda")]
    Device,
}

impl Place {
    /// Whether this memory is there.
    fn holds(self, memory: *const OrtMemoryInfo) -> Result<bool, Error> {
        match self {
            Self::Cpu => is_on_cpu(memory),
            #[cfg(feature = "cuda")]
            Self::Device => Ok(is_on_cpu(memory)? == crate::cuda::ON_CPU),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "the CPU",
            #[cfg(feature = "cuda")]
            Self::Device => "the device",
        }
    }
}

/// What makes a tensor. The address may be null if there are no elements.
struct Tensor {
    element: ElementType,
    shape: Shape,
    data: *mut u8,
}

impl Tensor {
    /// What makes the tensor `value`, which the runtime has just given.
    fn of(name: &'static str, value: NonNull<OrtValue>, place: Place) -> Result<Self, Error> {
        let mut memory = ptr::null();
        ortsys![unsafe GetTensorMemoryInfo(value.as_ptr(), &mut memory)?];
        if !place.holds(memory)? {
            return Err(Error::Device { name, device: device_name(memory)?, wanted: place.name() });
        }
        let info = TypeAndShape::of(value)?;
        let found = info.element()?;
        let element = element_type(found).ok_or(Error::ElementType { name, found })?;
        let mut data = ptr::null_mut();
        ortsys![unsafe GetTensorMutableData(value.as_ptr(), &mut data)?];
        Ok(Self { element, shape: info.shape()?, data: data.cast() })
    }
}

/// The type and shape of a tensor.
struct TypeAndShape(*mut OrtTensorTypeAndShapeInfo);

impl TypeAndShape {
    fn of(value: NonNull<OrtValue>) -> Result<Self, Error> {
        let mut info = ptr::null_mut();
        ortsys![unsafe GetTensorTypeAndShape(value.as_ptr(), &mut info)?];
        Ok(Self(info))
    }

    fn element(&self) -> Result<TensorElementType, Error> {
        let mut element = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
        ortsys![unsafe GetTensorElementType(self.0, &mut element)?];
        Ok(element.into())
    }

    fn shape(&self) -> Result<Shape, Error> {
        let mut rank = 0;
        ortsys![unsafe GetDimensionsCount(self.0, &mut rank)?];
        let mut dims: SmallVec<[i64; 5]> = smallvec![0; rank];
        ortsys![unsafe GetDimensions(self.0, dims.as_mut_ptr(), rank)?];
        // A tensor that exists has no negative dimension.
        Ok(dims.into_iter().map(|dim| dim as usize).collect())
    }
}

impl Drop for TypeAndShape {
    fn drop(&mut self) {
        ortsys![unsafe ReleaseTensorTypeAndShapeInfo(self.0)];
    }
}

/// Whether the CPU can reach this memory: its own, or a device's share of it, which the runtime counts as the device's
/// since version 1.23.
fn is_on_cpu(memory: *const OrtMemoryInfo) -> Result<bool, Error> {
    let mut device = OrtMemoryInfoDeviceType::OrtMemoryInfoDeviceType_CPU;
    ortsys![unsafe MemoryInfoGetDeviceType(memory, &mut device)];
    if device == OrtMemoryInfoDeviceType::OrtMemoryInfoDeviceType_CPU {
        return Ok(true);
    }
    let mut kind = OrtMemType::OrtMemTypeDefault;
    ortsys![unsafe MemoryInfoGetMemType(memory, &mut kind)?];
    Ok(kind != OrtMemType::OrtMemTypeDefault)
}

fn device_name(memory: *const OrtMemoryInfo) -> Result<String, Error> {
    let mut name = ptr::null();
    ortsys![unsafe MemoryInfoGetName(memory, &mut name)?];
    // SAFETY: the runtime has given a text that lives as long as the memory's description.
    Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// The runtime's name for a type of the operator.
pub(crate) fn runtime_type(element: ElementType) -> TensorElementType {
    match element {
        ElementType::Float32 => TensorElementType::Float32,
        ElementType::Float16 => TensorElementType::Float16,
        ElementType::Int8 => TensorElementType::Int8,
        ElementType::Int4 => TensorElementType::Int4,
        ElementType::Int64 => TensorElementType::Int64,
    }
}

/// The operator's name for a type of the runtime, if it is one of its own.
fn element_type(found: TensorElementType) -> Option<ElementType> {
    ElementType::ALL.into_iter().find(|&element| runtime_type(element) == found)
}
