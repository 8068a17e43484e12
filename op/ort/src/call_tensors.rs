//! ONNX Runtime's tensors as the operator's: views of the memory that the runtime has given for one call.
//!
//! A node has a dozen tensors, and a call may move a few kilobytes only, so what counts is how often the runtime is
//! asked. `ort` makes a value of each tensor, with its type and the names of its dimensions, in three allocations. Here
//! a tensor's address and shape are asked for, and nothing else:
//! - its type is the node's (see [`NodeTypes`]), since the runtime checks what a caller feeds against the model;
//! - it lies where the provider's operator wants it: the runtime copies what lies elsewhere before the call;
//! - an output has the shape that was asked for.
//!
//! A runtime since version 1.24 gives the address of a shape; an older one allocates a copy.

use std::ptr::{self, NonNull};
use std::slice;

use kvcache_op::{ElementType, Shape, TensorMut, TensorRef};
use ort::operator::ComputeContext;
use ort::sys::{ONNXTensorElementDataType, OrtTensorTypeAndShapeInfo, OrtValue};
use ort::value::TensorElementType;
use ort::{AsPointer, ortsys};
use smallvec::{SmallVec, smallvec};

use crate::api_1_24::TypeAndShapeReference;
use crate::definition::{Role, Signature};
use crate::error::Error;
use crate::node_types::{NodeTypes, element_type};
use crate::runtime::tensor_type_and_shape_reference;

/// The tensors of one call as the operators of a provider take them, by their positions in the node.
pub(crate) trait Tensors<'a> {
    type Ref;
    type Mut;

    /// The runtime's tensors.
    fn call(&self) -> &CallTensors<'a>;

    /// Checks that the tensor `value`, of this name, lies where an operator of the provider uses it.
    fn check_place(name: &'static str, value: NonNull<OrtValue>) -> Result<(), Error>;

    /// A tensor to be read.
    ///
    /// # Safety
    /// It is one of the runtime's, of this type, shape and address: contiguous, initialized, and there for 'a.
    unsafe fn reference(element: ElementType, shape: Shape, data: *mut u8) -> Self::Ref;

    /// A tensor to be written.
    ///
    /// # Safety
    /// It is one of the runtime's, of this type, shape and address: contiguous, initialized, and there for 'a; nobody
    /// else uses what the operator writes of it.
    unsafe fn mutable(element: ElementType, shape: Shape, data: *mut u8) -> Self::Mut;

    /// The input at `index`, to be read by the host on every provider.
    fn read_on_host(&self, index: usize) -> Result<TensorRef<'a>, Error>;

    /// The input at `index`, to be read.
    fn read(&self, index: usize) -> Result<Self::Ref, Error> {
        let (element, shape, data) = self.input(index)?;
        // SAFETY: type, shape and address are those that the runtime has just said.
        Ok(unsafe { Self::reference(element, shape, data) })
    }

    /// The input at `index`, which may be of any type, to be read as one of T1; `None` if it has no elements.
    ///
    /// # Errors
    /// If it has elements of a type that no operator knows. The operator refuses other wrong types.
    fn read_elements(&self, index: usize) -> Result<Option<Self::Ref>, Error> {
        let Some((element, shape, value)) = self.call().elements(index)? else { return Ok(None) };
        Self::check_place(self.call().signature.inputs[index], value)?;
        // SAFETY: type, shape and address are those that the runtime has just said.
        Ok(Some(unsafe { Self::reference(element, shape, address(value)?) }))
    }

    /// The input at `index`, to be modified.
    fn modify(&self, index: usize) -> Result<Self::Mut, Error> {
        let (element, shape, data) = self.input(index)?;
        // SAFETY: as in `read`. By the operator's definition the caller lets it write `cache` and `scale`, and nobody
        // else uses what of them this node's layer owns during the call.
        Ok(unsafe { Self::mutable(element, shape, data) })
    }

    /// The output at `index`, which the runtime makes with this shape.
    fn write(&self, index: usize, shape: &[usize]) -> Result<Self::Mut, Error> {
        let (element, value) = self.call().output(index, shape)?;
        Self::check_place(self.call().signature.output(index), value)?;
        // SAFETY: the runtime has made this output of its type and this shape, for the operator to write.
        Ok(unsafe { Self::mutable(element, shape.into(), address(value)?) })
    }

    /// Type, shape and address of the input at `index`.
    fn input(&self, index: usize) -> Result<(ElementType, Shape, *mut u8), Error> {
        let call = self.call();
        let element = call.types.input(index).expect("an input that the node has, of a type that was read");
        let (name, value) = call.named(index)?;
        Self::check_place(name, value)?;
        Ok((element, call.type_and_shape(value)?.1, address(value)?))
    }
}

/// The tensors of one call on the CPU provider.
///
/// Each is contiguous and initialized, and stays where it is until the call returns, which is after the context's
/// lifetime `'a`. An operator modifies at most two of its inputs, the cache and the scale: the caller gives them for
/// that.
#[derive(Clone, Copy)]
pub(crate) struct CallTensors<'a> {
    context: &'a ComputeContext,
    signature: &'static Signature,
    types: &'a NodeTypes,
    type_and_shape_reference: Option<TypeAndShapeReference>,
}

impl<'a> CallTensors<'a> {
    /// The tensors of the call that `context` describes, of a node with these types.
    pub(crate) fn new(context: &'a ComputeContext, signature: &'static Signature, types: &'a NodeTypes) -> Self {
        Self { context, signature, types, type_and_shape_reference: tensor_type_and_shape_reference() }
    }

    /// Type, shape and handle of the input at `index`, which may be of any type; `None` if it has no elements.
    ///
    /// # Errors
    /// If it has elements of a type that no operator knows.
    fn elements(&self, index: usize) -> Result<Option<(ElementType, Shape, NonNull<OrtValue>)>, Error> {
        let value = self.value(index)?;
        let (got, shape) = self.type_and_shape(value)?;
        if shape.contains(&0) {
            return Ok(None);
        }
        let (name, expected) = (self.signature.inputs[index], Role::Mask.types());
        let element = element_type(got).ok_or(Error::ElementType { name, got, expected })?;
        Ok(Some((element, shape, value)))
    }

    /// The name and handle of the input at `index`, which the node has.
    pub(crate) fn named(&self, index: usize) -> Result<(&'static str, NonNull<OrtValue>), Error> {
        Ok((self.signature.inputs[index], self.value(index)?))
    }

    /// The type and handle of the output at `index`, which the runtime makes with this shape.
    fn output(&self, index: usize, shape: &[usize]) -> Result<(ElementType, NonNull<OrtValue>), Error> {
        let dims: SmallVec<[i64; 4]> = shape.iter().map(|&dim| dim as i64).collect();
        let mut value = ptr::null_mut();
        ortsys![unsafe KernelContext_GetOutput(
            self.context.ptr().cast_mut(),
            index,
            dims.as_ptr(),
            dims.len(),
            &mut value
        )?];
        let value = NonNull::new(value).ok_or(Error::Missing { name: self.signature.output(index) })?;
        let element = if index < self.signature.outputs.len() { self.types.t1() } else { ElementType::Float32 };
        Ok((element, value))
    }

    /// The type and shape of a tensor that the runtime has given in this call.
    fn type_and_shape(&self, value: NonNull<OrtValue>) -> Result<(TensorElementType, Shape), Error> {
        let Some(reference) = self.type_and_shape_reference else { return copied_type_and_shape(value) };
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

    /// The handle of the input at `index`, which the node has.
    fn value(&self, index: usize) -> Result<NonNull<OrtValue>, Error> {
        let mut value = ptr::null();
        ortsys![unsafe KernelContext_GetInput(self.context.ptr(), index, &mut value)?];
        NonNull::new(value.cast_mut()).ok_or(Error::Missing { name: self.signature.inputs[index] })
    }
}

impl<'a> Tensors<'a> for CallTensors<'a> {
    type Ref = TensorRef<'a>;
    type Mut = TensorMut<'a>;

    fn call(&self) -> &Self {
        self
    }

    /// The runtime copies what lies elsewhere.
    fn check_place(_: &'static str, _: NonNull<OrtValue>) -> Result<(), Error> {
        Ok(())
    }

    unsafe fn reference(element: ElementType, shape: Shape, data: *mut u8) -> TensorRef<'a> {
        // SAFETY: the conditions are the same.
        unsafe { TensorRef::from_raw_parts(element, shape, data) }
    }

    unsafe fn mutable(element: ElementType, shape: Shape, data: *mut u8) -> TensorMut<'a> {
        // SAFETY: the conditions are the same.
        unsafe { TensorMut::from_raw_parts(element, shape, data) }
    }

    fn read_on_host(&self, index: usize) -> Result<TensorRef<'a>, Error> {
        self.read(index)
    }
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
    let info = TypeAndShapeInfo::new(value)?;
    let mut element = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    ortsys![unsafe GetTensorElementType(info.0, &mut element)?];
    let mut rank = 0;
    ortsys![unsafe GetDimensionsCount(info.0, &mut rank)?];
    let mut dims: SmallVec<[i64; 5]> = smallvec![0; rank];
    ortsys![unsafe GetDimensions(info.0, dims.as_mut_ptr(), rank)?];
    Ok((element.into(), shape_of(&dims)))
}

/// The runtime's copy of a tensor's type and shape.
struct TypeAndShapeInfo(*mut OrtTensorTypeAndShapeInfo);

impl TypeAndShapeInfo {
    fn new(value: NonNull<OrtValue>) -> Result<Self, Error> {
        let mut info = ptr::null_mut();
        ortsys![unsafe GetTensorTypeAndShape(value.as_ptr(), &mut info)?];
        Ok(Self(info))
    }
}

impl Drop for TypeAndShapeInfo {
    fn drop(&mut self) {
        ortsys![unsafe ReleaseTensorTypeAndShapeInfo(self.0)];
    }
}
