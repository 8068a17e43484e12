//! `KeyValueCache` on the CUDA provider.

use std::ffi::c_void;

use kvcache_op::IndexInputs;
use kvcache_op::cuda::{Cuda, DeviceInputs, DeviceOutputs, OutputRows, StatusWord, primary_context};

use super::kernel::DeviceCompute;
use super::tensor::DeviceTensors;
use crate::error::Error;
use crate::node::Node;
use crate::operators::KeyValueCacheNode;

/// What computes the calls of a node, for a device of this ordinal.
pub(super) fn on_device(node: &Node<'_>, ordinal: usize) -> Result<Box<dyn DeviceCompute>, Error> {
    let KeyValueCacheNode { operator, has_scale } = KeyValueCacheNode::new(node)?;
    let at = KeyValueCacheNode::AT;
    let scale = has_scale.then(|| node.element(at.scale));
    let stream = primary_context(ordinal)?.default_stream();
    operator.prepare_device::<Cuda>(node.element(at.current_key), node.element(at.cache), scale, &stream)?;
    Ok(Box::new(KeyValueCacheNode { operator, has_scale }))
}

impl DeviceCompute for KeyValueCacheNode {
    unsafe fn launch(
        &self,
        tensors: &DeviceTensors<'_>,
        status: &StatusWord,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let at = Self::AT;
        let inputs = DeviceInputs {
            current_key: tensors.read(at.current_key)?,
            current_value: tensors.read(at.current_value)?,
            indices: IndexInputs {
                seqstarts: tensors.read(at.seqstarts)?,
                cachestarts: tensors.read(at.cachestarts)?,
                start_pos: tensors.read(at.start_pos)?,
                kvstarts: OutputRows::Kvstarts(tensors.read_on_host(at.kvstarts)?),
                max_seqlen: tensors.read_on_host(at.max_seqlen)?,
                max_kvlen: tensors.read_on_host(at.max_kvlen)?,
            },
        };
        let scale = self.has_scale.then(|| tensors.modify(at.scale)).transpose()?;
        let call = self.operator.check_device(inputs, tensors.modify(at.cache)?, scale)?;
        let shape = call.output_shape();
        let outputs =
            DeviceOutputs { key: tensors.write(Self::KEY, &shape)?, value: tensors.write(Self::VALUE, &shape)? };
        // SAFETY: `stream` and `status` are as `launch` says.
        Ok(unsafe { call.launch_raw(outputs, status.address(), stream.cast()) }?)
    }
}
