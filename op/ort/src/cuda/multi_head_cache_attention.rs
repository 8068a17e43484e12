//! `MultiHeadCacheAttention` on the CUDA provider.

use std::ffi::c_void;

use kvcache_op::IndexInputs;
use kvcache_op::cuda::{Cuda, DeviceCacheAttentionInputs, DeviceInputs, OutputRows, StatusWord, primary_context};

use super::kernel::DeviceCompute;
use super::tensor::DeviceTensors;
use crate::error::Error;
use crate::node::Node;
use crate::operators::MultiHeadCacheAttentionNode;
use crate::operators::multi_head_cache_attention::{AT, ATTN_MASK, DECODING_BATCHES, QUERY};

/// What computes the calls of a node, for a device of this ordinal.
pub(super) fn on_device(node: &Node<'_>, ordinal: usize) -> Result<Box<dyn DeviceCompute>, Error> {
    let own = MultiHeadCacheAttentionNode::new(node)?;
    let scale = own.has_scale.then(|| node.element(AT.scale));
    let stream = primary_context(ordinal)?.default_stream();
    own.operator.prepare_device::<Cuda>(node.element(QUERY), node.element(AT.cache), scale, &stream)?;
    Ok(Box::new(own))
}

impl DeviceCompute for MultiHeadCacheAttentionNode {
    unsafe fn launch(
        &self,
        tensors: &DeviceTensors<'_>,
        status: &StatusWord,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let inputs = DeviceCacheAttentionInputs {
            query: tensors.read(QUERY)?,
            stored: DeviceInputs {
                current_key: tensors.read(AT.current_key)?,
                current_value: tensors.read(AT.current_value)?,
                indices: IndexInputs {
                    seqstarts: tensors.read(AT.seqstarts)?,
                    cachestarts: tensors.read(AT.cachestarts)?,
                    start_pos: tensors.read(AT.start_pos)?,
                    kvstarts: OutputRows::Kvstarts(tensors.read_on_host(AT.kvstarts)?),
                    max_seqlen: tensors.read_on_host(AT.max_seqlen)?,
                    max_kvlen: tensors.read_on_host(AT.max_kvlen)?,
                },
            },
            decoding_batches: tensors.read_on_host(DECODING_BATCHES)?,
            attn_mask: if self.has_mask { tensors.read_elements(ATTN_MASK)? } else { None },
        };
        let scale = self.has_scale.then(|| tensors.modify(AT.scale)).transpose()?;
        let call = self.operator.check_device(inputs, tensors.modify(AT.cache)?, scale)?;
        let attn_output = tensors.write(0, &call.output_shape())?;
        // SAFETY: `stream` and `status` are as `launch` says.
        Ok(unsafe { call.launch_raw_alloc(attn_output, status.address(), stream.cast()) }?)
    }
}
