//! `KeyValueCache` of static batching on the CUDA provider.

use std::ffi::c_void;

use kvcache_op::cuda::{Cuda, DeviceOutputs, StaticDeviceInputs, StatusWord, primary_context};

use super::kernel::DeviceCompute;
use super::tensor::DeviceTensors;
use crate::error::Error;
use crate::node::Node;
use crate::operators::StaticKeyValueCacheNode;

/// What computes the calls of a node, for a device of this ordinal.
pub(super) fn on_device(node: &Node<'_>, ordinal: usize) -> Result<Box<dyn DeviceCompute>, Error> {
    let this = StaticKeyValueCacheNode::new(node)?;
    let element = |index| node.element(index);
    let scale = this.has_scale.then(|| element(StaticKeyValueCacheNode::SCALE));
    let [t1, t2] = [StaticKeyValueCacheNode::CURRENT_KEY, StaticKeyValueCacheNode::CACHE].map(element);
    this.operator.prepare_device::<Cuda>(t1, t2, scale, &primary_context(ordinal)?.default_stream())?;
    Ok(Box::new(this))
}

impl DeviceCompute for StaticKeyValueCacheNode {
    unsafe fn launch(
        &self,
        tensors: &DeviceTensors<'_>,
        status: &StatusWord,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let inputs = StaticDeviceInputs {
            current_key: tensors.read(Self::CURRENT_KEY)?,
            current_value: tensors.read(Self::CURRENT_VALUE)?,
            start_pos: tensors.read_on_host(Self::START_POS)?,
        };
        let scale = self.has_scale.then(|| tensors.modify(Self::SCALE)).transpose()?;
        let call = self.operator.check_device(inputs, tensors.modify(Self::CACHE)?, scale)?;
        let shape = call.output_shape();
        let outputs =
            DeviceOutputs { key: tensors.write(Self::KEY, &shape)?, value: tensors.write(Self::VALUE, &shape)? };
        // SAFETY: `stream` and `status` are as `launch` says.
        Ok(unsafe { call.launch_raw(outputs, status.address(), stream.cast()) }?)
    }
}
