//! ONNX Runtime's tensors in a device's memory as the operator's.

use std::ptr::NonNull;

use kvcache_op::cuda::{DeviceMut, DeviceRef};
use kvcache_op::{ElementType, Shape, TensorRef};
use ort::sys::OrtValue;

use super::place::Place;
use crate::call_tensors::{CallTensors, Tensors};
use crate::error::Error;

/// The tensors of one call on the CUDA provider, by their positions in the node, each checked to lie where it must.
pub(crate) struct DeviceTensors<'a>(pub(crate) CallTensors<'a>);

impl<'a> Tensors<'a> for DeviceTensors<'a> {
    type Ref = DeviceRef<'a>;
    type Mut = DeviceMut<'a>;

    fn call(&self) -> &CallTensors<'a> {
        &self.0
    }

    fn check_place(name: &'static str, value: NonNull<OrtValue>) -> Result<(), Error> {
        Place::Device.check(name, value)
    }

    unsafe fn reference(element: ElementType, shape: Shape, data: *mut u8) -> DeviceRef<'a> {
        // SAFETY: the tensor is in the device's memory, checked before, and stays until the stream of the call is done
        // with it.
        unsafe { DeviceRef::from_raw_parts(element, shape, data.addr() as u64) }
    }

    unsafe fn mutable(element: ElementType, shape: Shape, data: *mut u8) -> DeviceMut<'a> {
        // SAFETY: as in `reference`.
        unsafe { DeviceMut::from_raw_parts(element, shape, data.addr() as u64) }
    }

    fn read_on_host(&self, index: usize) -> Result<TensorRef<'a>, Error> {
        let (name, value) = self.0.named(index)?;
        Place::Cpu.check(name, value)?;
        self.0.read(index)
    }
}
