//! `MultiHeadAttention` on the CUDA provider.

use std::ffi::c_void;

use kvcache_op::cuda::{Cuda, DeviceAttentionInputs, StatusWord, primary_context};

use super::kernel::DeviceCompute;
use super::tensor::DeviceTensors;
use crate::error::Error;
use crate::node::Node;
use crate::operators::MultiHeadAttentionNode;
use crate::operators::multi_head_attention as at;

/// What computes the calls of a node, for a device of this ordinal.
pub(super) fn on_device(node: &Node<'_>, ordinal: usize) -> Result<Box<dyn DeviceCompute>, Error> {
    let own = MultiHeadAttentionNode::new(node)?;
    own.operator.prepare_device::<Cuda>(node.element(at::QUERY), &primary_context(ordinal)?.default_stream())?;
    Ok(Box::new(own))
}

impl DeviceCompute for MultiHeadAttentionNode {
    unsafe fn launch(
        &self,
        tensors: &DeviceTensors<'_>,
        status: &StatusWord,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let inputs = DeviceAttentionInputs {
            query: tensors.read(at::QUERY)?,
            key: tensors.read(at::KEY)?,
            value: tensors.read(at::VALUE)?,
            seqstarts: tensors.read(at::SEQSTARTS)?,
            kvstarts: tensors.read(at::KVSTARTS)?,
            decoding_batches: tensors.read_on_host(at::DECODING_BATCHES)?,
            max_seqlen: tensors.read_on_host(at::MAX_SEQLEN)?,
            max_kvlen: tensors.read_on_host(at::MAX_KVLEN)?,
            attn_mask: if self.has_mask { tensors.read_elements(at::ATTN_MASK)? } else { None },
            exact_rows: true,
        };
        let call = self.operator.check_device(inputs)?;
        let attn_output = tensors.write(0, &call.output_shape())?;
        // SAFETY: `stream` and `status` are as `launch` says.
        Ok(unsafe { call.launch_raw_alloc(attn_output, status.address(), stream.cast()) }?)
    }
}
