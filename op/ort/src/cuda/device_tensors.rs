//! ONNX Runtime's tensors in a device's memory as the operator's.

use kvcache_op::TensorRef;
use kvcache_op::cuda::{DeviceMut, DeviceRef};
use ort::operator::ComputeContext;

use super::place::Place;
use crate::call_tensors::{CallTensors, Tensors, address};
use crate::definition::Signature;
use crate::error::Error;
use crate::node_types::NodeTypes;

/// The tensors of one call on the CUDA provider, by their positions in the node: [`CallTensors`] of which each is
/// checked to lie where it must.
pub(crate) struct DeviceTensors<'a> {
    signature: &'static Signature,
    tensors: CallTensors<'a>,
}

impl<'a> DeviceTensors<'a> {
    /// The tensors of the call that `context` describes, of a node with these types.
    pub(crate) fn new(context: &'a ComputeContext, signature: &'static Signature, types: &'a NodeTypes) -> Self {
        Self { signature, tensors: CallTensors::new(context, signature, types) }
    }
}

impl<'a> Tensors<'a> for DeviceTensors<'a> {
    type Ref = DeviceRef<'a>;
    type Mut = DeviceMut<'a>;

    fn read_on_host(&self, index: usize) -> Result<TensorRef<'a>, Error> {
        Place::Cpu.check(self.signature.inputs[index], self.tensors.input(index)?.1)?;
        self.tensors.read(index)
    }

    fn read(&self, index: usize) -> Result<DeviceRef<'a>, Error> {
        let (element, value) = self.tensors.input(index)?;
        Place::Device.check(self.signature.inputs[index], value)?;
        let (shape, data) = (self.tensors.shape(value)?, address(value)?);
        // SAFETY: the runtime's tensor has this type, shape and address, in the device's memory, checked above. It stays
        // until the stream of the call is done with it.
        Ok(unsafe { DeviceRef::from_raw_parts(element, shape, data.addr() as u64) })
    }

    fn read_elements(&self, index: usize) -> Result<Option<DeviceRef<'a>>, Error> {
        let Some((element, shape, data)) = self.tensors.elements(index)? else { return Ok(None) };
        Place::Device.check(self.signature.inputs[index], self.tensors.input(index)?.1)?;
        // SAFETY: the runtime's tensor has this type, shape and address, in the device's memory, checked above. It stays
        // until the stream of the call is done with it.
        Ok(Some(unsafe { DeviceRef::from_raw_parts(element, shape, data.addr() as u64) }))
    }

    fn modify(&self, index: usize) -> Result<DeviceMut<'a>, Error> {
        let (element, value) = self.tensors.input(index)?;
        Place::Device.check(self.signature.inputs[index], value)?;
        let (shape, data) = (self.tensors.shape(value)?, address(value)?);
        // SAFETY: the runtime's tensor has this type, shape and address, in the device's memory, checked above. It stays
        // until the stream of the call is done with it. By the operator's definition the caller lets it write `cache`
        // and `scale`.
        Ok(unsafe { DeviceMut::from_raw_parts(element, shape, data.addr() as u64) })
    }

    fn write(&self, index: usize, shape: &[usize]) -> Result<DeviceMut<'a>, Error> {
        let (element, value) = self.tensors.output(index, shape)?;
        Place::Device.check(self.signature.output(index), value)?;
        let data = address(value)?;
        // SAFETY: the runtime has made this output of its type and this shape, in the device's memory, checked above. It
        // stays until the stream of the call is done with it.
        Ok(unsafe { DeviceMut::from_raw_parts(element, shape, data.addr() as u64) })
    }
}
