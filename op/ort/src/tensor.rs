//! ONNX Runtime's tensors as the operator's.
//!
//! A node has a dozen of them, and a call may move a few kilobytes only. `ort` makes a value of each that holds its type
//! with the names of its dimensions, in three allocations; asking the runtime for what the operator needs takes a third
//! off the cost of a node. So this module talks to the runtime itself: with handles that the runtime has given in the same
//! call, none of which outlives it, and with places for its answers.
//!
//! A runtime since 1.24 lends type and shape; an older one allocates a copy of them. And views are made where they stay: the
//! processor must wait when it moves what it has just written in smaller parts. A call that stores one token and loads 16
//! costs so much more than one of an empty operator with the same inputs (8 heads of 128, us):
//!
//! |                     | copied, moved | copied | lent |
//! |---------------------|---------------|--------|------|
//! | float16             | 2.7           | 2.4    | 1.6  |
//! | int8, groups of 8   | 3.8           | 3.4    | 2.6  |
//!
//! Of these the operator itself, called directly, takes 0.9 and 1.8.

use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::slice;

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
use crate::newer::LendTypeAndShape;
use crate::register::lender;

/// The operator's tensors in one call from ONNX Runtime, by position.
///
/// The runtime keeps their memory, contiguous and initialized, for the call, which is as long as it lends the context.
/// The operator modifies two of its inputs, the cache and the scale, and the caller hands them over for that.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a>(pub(crate) &'a ComputeContext);

impl<'a> Operands<'a> {
    /// The input at `index`, to be read.
    pub(crate) fn read(self, index: usize) -> Result<TensorRef<'a>, Error> {
        // SAFETY: the runtime keeps a tensor of this type and shape at this address until the context ends.
        let view = |element, shape, data: *mut u8| unsafe { TensorRef::from_raw_parts(element, shape, data) };
        tensor(INPUTS[index], self.required(index)?, Place::Cpu, view)
    }

    /// The input at `index`, to be modified; `None` if the node does without it.
    pub(crate) fn modify(self, index: usize) -> Result<Option<TensorMut<'a>>, Error> {
        // SAFETY: as above, and this input is in-out by the operator's definition.
        let view = |element, shape, data| Some(unsafe { TensorMut::from_raw_parts(element, shape, data) });
        self.input(index)?.map_or(Ok(None), |value| tensor(INPUTS[index], value, Place::Cpu, view))
    }

    /// The output at `index`, which the runtime makes with this shape.
    pub(crate) fn write(self, index: usize, shape: [usize; 3]) -> Result<TensorMut<'a>, Error> {
        // SAFETY: as above, and the runtime has made this output for the operator to write.
        let view = |element, shape, data| unsafe { TensorMut::from_raw_parts(element, shape, data) };
        tensor(OUTPUTS[index], self.output(index, shape)?, Place::Cpu, view)
    }

    /// The input at `index` in the device's memory, to be read.
    #[cfg(feature = "cuda")]
    pub(crate) fn read_device(self, index: usize) -> Result<DeviceRef<'a>, Error> {
        // SAFETY: the runtime keeps a tensor of this type and shape at this address until its stream is through with the call.
        let view =
            |element, shape, data: *mut u8| unsafe { DeviceRef::from_raw_parts(element, shape, data.addr() as u64) };
        tensor(INPUTS[index], self.required(index)?, Place::Device, view)
    }

    /// The input at `index` in the device's memory, to be modified; `None` if the node does without it.
    #[cfg(feature = "cuda")]
    pub(crate) fn modify_device(self, index: usize) -> Result<Option<DeviceMut<'a>>, Error> {
        let view = |element, shape, data: *mut u8| {
            // SAFETY: as above, and this input is in-out by the operator's definition.
            Some(unsafe { DeviceMut::from_raw_parts(element, shape, data.addr() as u64) })
        };
        self.input(index)?.map_or(Ok(None), |value| tensor(INPUTS[index], value, Place::Device, view))
    }

    /// The output at `index` in the device's memory, which the runtime makes with this shape.
    #[cfg(feature = "cuda")]
    pub(crate) fn write_device(self, index: usize, shape: [usize; 3]) -> Result<DeviceMut<'a>, Error> {
        // SAFETY: as above, and the runtime has made this output for the operator to write.
        let view =
            |element, shape, data: *mut u8| unsafe { DeviceMut::from_raw_parts(element, shape, data.addr() as u64) };
        tensor(OUTPUTS[index], self.output(index, shape)?, Place::Device, view)
    }

    fn input(self, index: usize) -> Result<Option<NonNull<OrtValue>>, Error> {
        let mut value = ptr::null();
        ortsys![unsafe KernelContext_GetInput(self.0.ptr(), index, &mut value)?];
        Ok(NonNull::new(value.cast_mut()))
    }

    fn required(self, index: usize) -> Result<NonNull<OrtValue>, Error> {
        self.input(index)?.ok_or_else(|| Error::Missing { name: INPUTS[index] })
    }

    fn output(self, index: usize, shape: [usize; 3]) -> Result<NonNull<OrtValue>, Error> {
        let dims = shape.map(|dim| dim as i64);
        let mut value = ptr::null_mut();
        ortsys![unsafe KernelContext_GetOutput(self.0.ptr().cast_mut(), index, dims.as_ptr(), dims.len(), &mut value)?];
        NonNull::new(value).ok_or_else(|| Error::Missing { name: OUTPUTS[index] })
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
            Self::Device => Ok(is_on_cpu(memory)? == crate::cuda::EMULATED),
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

/// The tensor `value`, which the runtime has just given, as what `view` makes of its type, shape and address; this may be null
/// if there are no elements.
fn tensor<T>(
    name: &'static str,
    value: NonNull<OrtValue>,
    place: Place,
    view: impl FnOnce(ElementType, Shape, *mut u8) -> T,
) -> Result<T, Error> {
    let mut memory = ptr::null();
    ortsys![unsafe GetTensorMemoryInfo(value.as_ptr(), &mut memory)?];
    if !place.holds(memory)? {
        return Err(Error::Device { name, device: device_name(memory)?, wanted: place.name() });
    }
    let mut data = ptr::null_mut();
    ortsys![unsafe GetTensorMutableData(value.as_ptr(), &mut data)?];
    let mut asked = Dims::new();
    let (found, dims) = match lender() {
        // SAFETY: the runtime has just given the tensor, and changes its shape as little as its memory.
        Some(lend) => lent_type_and_shape(unsafe { value.as_ref() }, lend)?,
        None => type_and_shape(value, &mut asked)?,
    };
    let element = element_type(found).ok_or_else(|| Error::ElementType { name, found })?;
    Ok(view(element, shape_of(dims), data.cast()))
}

/// The dimensions of a tensor, in memory of their own.
type Dims = SmallVec<[i64; 5]>;

/// The type and dimensions of a tensor, as a runtime since 1.24 tells them.
fn lent_type_and_shape(value: &OrtValue, lend: LendTypeAndShape) -> Result<(TensorElementType, &[i64]), Error> {
    let mut element = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    let (mut dims, mut rank) = (ptr::null(), 0);
    // SAFETY: the function is the runtime's, and its answers have places.
    unsafe { ort::Error::result_from_status(lend(value, &mut element, &mut dims, &mut rank)) }?;
    let dims = match rank {
        0 => &[],
        // SAFETY: the runtime has so many dimensions there, and keeps them as long as the tensor, which is borrowed.
        _ => unsafe { slice::from_raw_parts(dims, rank) },
    };
    Ok((element.into(), dims))
}

/// The type and dimensions of a tensor, as every runtime tells them.
fn type_and_shape(value: NonNull<OrtValue>, dims: &mut Dims) -> Result<(TensorElementType, &[i64]), Error> {
    let info = TypeAndShape::of(value)?;
    *dims = info.shape()?;
    Ok((info.element()?, dims))
}

/// A shape of the runtime. A tensor that exists has no negative dimension.
fn shape_of(dims: &[i64]) -> Shape {
    // In one piece where a dimension of the runtime is as wide as ours, as on every machine of 64 bits.
    match bytemuck::try_cast_slice::<i64, usize>(dims) {
        Ok(dims) => dims.into(),
        Err(_) => dims.iter().map(|&dim| dim as usize).collect(),
    }
}

/// The type and shape of a tensor, in memory of their own.
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

    fn shape(&self) -> Result<Dims, Error> {
        let mut rank = 0;
        ortsys![unsafe GetDimensionsCount(self.0, &mut rank)?];
        let mut dims: Dims = smallvec![0; rank];
        ortsys![unsafe GetDimensions(self.0, dims.as_mut_ptr(), rank)?];
        Ok(dims)
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
