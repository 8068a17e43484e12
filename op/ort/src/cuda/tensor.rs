//! ONNX Runtime's tensors in a device's memory as the operator's.

use kvcache_op::TensorRef;
use kvcache_op::cuda::{DeviceMut, DeviceRef};
use kvcache_schema::{INPUTS, OUTPUTS};
use ort::operator::ComputeContext;

use super::memory::Place;
use crate::error::Error;
use crate::node_types::NodeTypes;
use crate::tensor::{CallTensors, address};

/// The tensors of one call on the CUDA provider, by their positions in the node: [`CallTensors`] of which each is
/// checked to lie where it must.
pub(crate) struct DeviceTensors<'a>(CallTensors<'a>);

impl<'a> DeviceTensors<'a> {
    /// The tensors of the call that `context` describes, of a node with these types.
    pub(crate) fn new(context: &'a ComputeContext, types: NodeTypes) -> Self {
        Self(CallTensors::new(context, types))
    }

    /// The input at `index`, to be read by the host.
    pub(crate) fn read_on_host(&self, index: usize) -> Result<TensorRef<'a>, Error> {
        Place::Cpu.check(INPUTS[index], self.0.input(index)?.1)?;
        self.0.read(index)
    }

    /// The input at `index`, to be read by the device.
    pub(crate) fn read(&self, index: usize) -> Result<DeviceRef<'a>, Error> {
        let (element, value) = self.0.input(index)?;
        Place::Device.check(INPUTS[index], value)?;
        let (shape, data) = (self.0.shape(value)?, address(value)?);
        // SAFETY: the runtime's tensor has this type, shape and address, as in `CallTensors::read`, in the device's
        // memory, checked above. It stays until the stream of the call is done with it.
        Ok(unsafe { DeviceRef::from_raw_parts(element, shape, data.addr() as u64) })
    }

    /// The input at `index`, to be modified by the device.
    pub(crate) fn modify(&self, index: usize) -> Result<DeviceMut<'a>, Error> {
        let (element, value) = self.0.input(index)?;
        Place::Device.check(INPUTS[index], value)?;
        let (shape, data) = (self.0.shape(value)?, address(value)?);
        // SAFETY: as in `read`; and the caller lets the operator write this input, as in `CallTensors::modify`.
        Ok(unsafe { DeviceMut::from_raw_parts(element, shape, data.addr() as u64) })
    }

    /// The output at `index`, which the runtime makes with this shape in the device's memory.
    pub(crate) fn write(&self, index: usize, shape: [usize; 3]) -> Result<DeviceMut<'a>, Error> {
        let (element, value) = self.0.output(index, shape)?;
        Place::Device.check(OUTPUTS[index], value)?;
        let data = address(value)?;
        // SAFETY: the runtime has made this output of T1 and this shape, in the device's memory, checked above. It
        // stays until the stream of the call is done with it.
        Ok(unsafe { DeviceMut::from_raw_parts(element, shape, data.addr() as u64) })
    }
}
