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

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;

use kvcache_op::{ElementType, Shape, TensorMut, TensorRef};
use ort::operator::ComputeContext;
use ort::sys::{ONNXTensorElementDataType, OrtTensorTypeAndShapeInfo, OrtValue};
use ort::value::TensorElementType;
use ort::{AsPointer, ortsys};
use smallvec::{SmallVec, smallvec};

use crate::error::Error;
use crate::node_types::{NodeTypes, element_type};
use crate::runtime::{TypeAndShapeReference, type_and_shape_reference};
use crate::signature::{Role, Signature};

/// Where the tensors of a provider lie, and what its kernels take for them.
pub(crate) trait Memory {
    type Ref<'a>;
    type Mut<'a>;

    /// Checks that the tensor `value`, called `name`, lies here, or in the host's memory if it is read there.
    fn check(name: &'static str, value: NonNull<OrtValue>, on_host: bool) -> Result<(), Error>;

    /// A tensor to be read.
    ///
    /// # Safety
    /// It is one of the runtime's, of this type, shape and address: contiguous, initialized, and there for 'a.
    unsafe fn reference<'a>(element: ElementType, shape: Shape, data: *mut u8) -> Self::Ref<'a>;

    /// A tensor to be written.
    ///
    /// # Safety
    /// The conditions of [`reference`](Self::reference); and nobody else uses what the operator writes of it.
    unsafe fn mutable<'a>(element: ElementType, shape: Shape, data: *mut u8) -> Self::Mut<'a>;
}

/// The memory of the CPU provider. The runtime copies what lies elsewhere.
pub(crate) struct Host;

impl Memory for Host {
    type Ref<'a> = TensorRef<'a>;
    type Mut<'a> = TensorMut<'a>;

    fn check(_: &'static str, _: NonNull<OrtValue>, _: bool) -> Result<(), Error> {
        Ok(())
    }

    unsafe fn reference<'a>(element: ElementType, shape: Shape, data: *mut u8) -> TensorRef<'a> {
        // SAFETY: the conditions are the same.
        unsafe { TensorRef::from_raw_parts(element, shape, data) }
    }

    unsafe fn mutable<'a>(element: ElementType, shape: Shape, data: *mut u8) -> TensorMut<'a> {
        // SAFETY: the conditions are the same.
        unsafe { TensorMut::from_raw_parts(element, shape, data) }
    }
}

/// The tensors of a call on the CPU provider.
pub(crate) type HostTensors<'a> = Tensors<'a, Host>;

/// The tensors of one call, by their positions in the node.
///
/// Each is contiguous and initialized, and stays where it is until the call returns, which is after the context's
/// lifetime `'a`. An operator modifies at most two of its inputs, the cache and the scale: the caller gives them for
/// that.
pub(crate) struct Tensors<'a, M> {
    context: &'a ComputeContext,
    signature: &'static Signature,
    types: &'a NodeTypes,
    type_and_shape_reference: Option<TypeAndShapeReference>,
    memory: PhantomData<M>,
}

impl<'a, M: Memory> Tensors<'a, M> {
    /// The tensors of the call that `context` describes, of a node with these types.
    pub(crate) fn new(context: &'a ComputeContext, signature: &'static Signature, types: &'a NodeTypes) -> Self {
        let type_and_shape_reference = type_and_shape_reference();
        Self { context, signature, types, type_and_shape_reference, memory: PhantomData }
    }

    /// The input at `index`, to be read.
    pub(crate) fn read(&self, index: usize) -> Result<M::Ref<'a>, Error> {
        let (element, shape, data) = self.input(index, false)?;
        // SAFETY: type, shape and address are those that the runtime has just said.
        Ok(unsafe { M::reference(element, shape, data) })
    }

    /// The input at `index`, to be read by the host on every provider.
    pub(crate) fn read_on_host(&self, index: usize) -> Result<TensorRef<'a>, Error> {
        let (element, shape, data) = self.input(index, true)?;
        // SAFETY: as in `read`; the tensor is in the host's memory, checked by `input`.
        Ok(unsafe { Host::reference(element, shape, data) })
    }

    /// The input at `index`, which may be of any type, to be read as one of T1; `None` if it has no elements.
    ///
    /// # Errors
    /// If it has elements of a type that no operator knows. The operator refuses other wrong types.
    pub(crate) fn read_elements(&self, index: usize) -> Result<Option<M::Ref<'a>>, Error> {
        let (name, value) = self.named(index)?;
        let (got, shape) = self.type_and_shape(value)?;
        if shape.contains(&0) {
            return Ok(None);
        }
        let element = element_type(got).ok_or(Error::ElementType { name, got, expected: Role::Mask.types() })?;
        M::check(name, value, false)?;
        // SAFETY: type, shape and address are those that the runtime has just said.
        Ok(Some(unsafe { M::reference(element, shape, address(value)?) }))
    }

    /// The input at `index`, to be modified.
    pub(crate) fn modify(&self, index: usize) -> Result<M::Mut<'a>, Error> {
        let (element, shape, data) = self.input(index, false)?;
        // SAFETY: as in `read`. By the operator's definition the caller lets it write `cache` and `scale`, and nobody
        // else uses what of them this node's layer owns during the call.
        Ok(unsafe { M::mutable(element, shape, data) })
    }

    /// The output at `index`, which the runtime makes with this shape.
    pub(crate) fn write(&self, index: usize, shape: &[usize]) -> Result<M::Mut<'a>, Error> {
        let dims: SmallVec<[i64; 4]> = shape.iter().map(|&dim| dim as i64).collect();
        let (context, mut value) = (self.context.ptr().cast_mut(), ptr::null_mut());
        ortsys![unsafe KernelContext_GetOutput(context, index, dims.as_ptr(), dims.len(), &mut value)?];
        let name = self.signature.output(index);
        let value = NonNull::new(value).ok_or(Error::Missing { name })?;
        M::check(name, value, false)?;
        let first = self.signature.output_type.unwrap_or(self.types.t1());
        let element = if index < self.signature.outputs.len() { first } else { ElementType::Float32 };
        // SAFETY: the runtime has made this output of its type and this shape, for the operator to write.
        Ok(unsafe { M::mutable(element, shape.into(), address(value)?) })
    }

    /// Type, shape and address of the input at `index`, which the node has, of a type that was read.
    fn input(&self, index: usize, on_host: bool) -> Result<(ElementType, Shape, *mut u8), Error> {
        let element = self.types.input(index).expect("an input that the node has, of a type that was read");
        let (name, value) = self.named(index)?;
        M::check(name, value, on_host)?;
        Ok((element, self.type_and_shape(value)?.1, address(value)?))
    }

    /// The name and handle of the input at `index`, which the node has.
    fn named(&self, index: usize) -> Result<(&'static str, NonNull<OrtValue>), Error> {
        let (name, mut value) = (self.signature.inputs[index], ptr::null());
        ortsys![unsafe KernelContext_GetInput(self.context.ptr(), index, &mut value)?];
        Ok((name, NonNull::new(value.cast_mut()).ok_or(Error::Missing { name })?))
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
