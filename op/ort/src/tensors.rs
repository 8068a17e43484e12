//! ONNX Runtime's tensors as the operator's: views of the memory that the runtime has given for one call.
//!
//! A node has a dozen tensors, and a call may move a few kilobytes only, so what counts is how often the runtime is
//! asked. `ort` makes a value of each tensor, with its type and the names of its dimensions, in three allocations. Here
//! a tensor's address and shape are asked for, and nothing else:
//! - its type is the node's (see [`Input`]), since the runtime checks what a caller feeds against the model;
//! - it lies where the provider's operator wants it: the runtime copies what lies elsewhere before the call;
//! - an output has the shape that was asked for.
//!
//! A runtime since version 1.24 gives the address of a shape; an older one allocates a copy.

use std::ptr::{self, NonNull};
use std::slice;

#[cfg(feature = "cuda")]
use kvcache_op::cuda::{DeviceMut, DeviceRef};
use kvcache_op::{ElementType, Operand, Output, Shape, TensorMut, TensorRef};
use kvcache_schema::Role;
use ort::operator::ComputeContext;
use ort::sys::{ONNXTensorElementDataType, OrtTensorTypeAndShapeInfo, OrtValue};
use ort::value::TensorElementType;
use ort::{AsPointer, ortsys};
use smallvec::{SmallVec, smallvec};

#[cfg(feature = "cuda")]
use crate::cuda;
use crate::error::Error;
use crate::node::Input;
use crate::node_types::element_type;
use crate::runtime::type_and_shape_reference;

/// The input at `index`, which the node has; `None` if it is a mask without elements.
///
/// It is contiguous and initialized, and stays where it is until the call returns, which is after the context's
/// lifetime `'a`. An operator modifies at most two of its inputs, the cache and the scale: the caller gives them for
/// that.
///
/// # Errors
/// If a mask has elements of a type that no operator knows. The operator refuses other wrong types.
pub(crate) fn input<'a>(
    context: &'a ComputeContext,
    index: usize,
    input: &Input,
) -> Result<Option<Operand<'a>>, Error> {
    let Some((element, shape, value)) = given(context, index, input)? else { return Ok(None) };
    let data = address(value)?;
    // SAFETY: type, shape and address are those that the runtime has just said. By the operator's definition the caller
    // lets it write `cache` and `scale`, and nobody else uses what of them this node's layer owns during the call.
    Ok(Some(unsafe {
        match input.role.is_state() {
            true => TensorMut::from_raw_parts(element, shape, data).into(),
            false => TensorRef::from_raw_parts(element, shape, data).into(),
        }
    }))
}

/// The input at `index` on the node's device, or `on_host` where the host reads it also there. As [`input`], but on the
/// device it stays until the call's stream is done with it.
#[cfg(feature = "cuda")]
pub(crate) fn input_on_device<'a>(
    context: &'a ComputeContext,
    index: usize,
    input: &Input,
    on_host: bool,
) -> Result<Option<Operand<'a>>, Error> {
    let Some((element, shape, value)) = given(context, index, input)? else { return Ok(None) };
    cuda::check_place(input.name, value, on_host)?;
    if on_host {
        return self::input(context, index, input);
    }
    let address = address(value)?.addr() as u64;
    // SAFETY: as in `input`; the tensor is in the device's memory, checked above.
    Ok(Some(unsafe {
        match input.role.is_state() {
            true => DeviceMut::from_raw_parts(element, shape, address).into(),
            false => DeviceRef::from_raw_parts(element, shape, address).into(),
        }
    }))
}

/// The address of the output at `index`, which the runtime makes as `output` says.
pub(crate) fn output(context: &ComputeContext, index: usize, output: &Output) -> Result<*mut u8, Error> {
    address(made(context, index, output)?)
}

/// The output at `index`, which the runtime makes as `output` says, on the node's device.
#[cfg(feature = "cuda")]
pub(crate) fn output_on_device<'a>(
    context: &'a ComputeContext,
    index: usize,
    output: &Output,
) -> Result<DeviceMut<'a>, Error> {
    let value = made(context, index, output)?;
    cuda::check_place(output.name, value, false)?;
    let address = address(value)?.addr() as u64;
    // SAFETY: the runtime has made this output of its type and this shape, for the operator to write, in the device's
    // memory, checked above.
    Ok(unsafe { DeviceMut::from_raw_parts(output.element, output.shape.clone(), address) })
}

fn made(
    context: &ComputeContext,
    index: usize,
    Output { name, shape, .. }: &Output,
) -> Result<NonNull<OrtValue>, Error> {
    let dims: SmallVec<[i64; 4]> = shape.iter().map(|&dim| dim as i64).collect();
    let mut value = ptr::null_mut();
    ortsys![unsafe KernelContext_GetOutput(context.ptr().cast_mut(), index, dims.as_ptr(), dims.len(), &mut value)?];
    NonNull::new(value).ok_or(Error::Missing { name })
}

/// The input at `index` with its type and shape; `None` if it is a mask without elements.
fn given(
    context: &ComputeContext,
    index: usize,
    &Input { name, role, element }: &Input,
) -> Result<Option<(ElementType, Shape, NonNull<OrtValue>)>, Error> {
    let mut value = ptr::null();
    ortsys![unsafe KernelContext_GetInput(context.ptr(), index, &mut value)?];
    let value = NonNull::new(value.cast_mut()).ok_or(Error::Missing { name })?;
    let (got, shape) = type_and_shape(value)?;
    let element = match (role, element) {
        (Role::Mask, _) if shape.contains(&0) => return Ok(None),
        (Role::Mask, _) | (_, None) => {
            element_type(got).ok_or(Error::ElementType { name, got, expected: role.types() })?
        }
        (_, Some(element)) => element,
    };
    Ok(Some((element, shape, value)))
}

/// The type and shape of a tensor that the runtime has given in this call.
fn type_and_shape(value: NonNull<OrtValue>) -> Result<(TensorElementType, Shape), Error> {
    let Some(reference) = type_and_shape_reference() else { return copied_type_and_shape(value) };
    let mut element = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    let (mut dims, mut rank) = (ptr::null(), 0);
    // SAFETY: the handle is of this call, and the three places are there to be written.
    unsafe { ort::Error::result_from_status(reference(value.as_ptr(), &mut element, &mut dims, &mut rank)) }?;
    let shape = match rank {
        0 => Shape::default(),
        // SAFETY: the runtime has `rank` dimensions at `dims`, which belong to the tensor, and are not kept here.
        _ => shape_of(unsafe { slice::from_raw_parts(dims, rank) }),
    };
    Ok((element.into(), shape))
}

/// The address of a tensor that the runtime has given in this call; it may be null if there are no elements.
fn address(value: NonNull<OrtValue>) -> Result<*mut u8, Error> {
    let mut data = ptr::null_mut();
    ortsys![unsafe GetTensorMutableData(value.as_ptr(), &mut data)?];
    Ok(data.cast())
}

/// A shape of the runtime. A tensor that exists has no negative dimension.
fn shape_of(dims: &[i64]) -> Shape {
    // One copy where usize has 64 bits.
    match bytemuck::try_cast_slice::<i64, usize>(dims) {
        Ok(dims) => dims.into(),
        Err(_) => dims.iter().map(|&dim| dim as usize).collect(),
    }
}

/// The type and shape of a tensor as runtimes before version 1.24 give them.
fn copied_type_and_shape(value: NonNull<OrtValue>) -> Result<(TensorElementType, Shape), Error> {
    /// The runtime's copy of a tensor's type and shape.
    struct Info(*mut OrtTensorTypeAndShapeInfo);

    impl Drop for Info {
        fn drop(&mut self) {
            ortsys![unsafe ReleaseTensorTypeAndShapeInfo(self.0)];
        }
    }

    let mut info = ptr::null_mut();
    ortsys![unsafe GetTensorTypeAndShape(value.as_ptr(), &mut info)?];
    let info = Info(info);
    let mut element = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    ortsys![unsafe GetTensorElementType(info.0, &mut element)?];
    let mut rank = 0;
    ortsys![unsafe GetDimensionsCount(info.0, &mut rank)?];
    let mut dims: SmallVec<[i64; 5]> = smallvec![0; rank];
    ortsys![unsafe GetDimensions(info.0, dims.as_mut_ptr(), rank)?];
    Ok((element.into(), shape_of(&dims)))
}
