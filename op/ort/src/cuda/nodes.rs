//! The operators' nodes on a device.

use kvcache_op::cuda::cudarc::driver::CudaStream;
use kvcache_op::cuda::cudarc::driver::sys::CUstream;
use kvcache_op::cuda::{DeviceAttentionCall, DeviceAttentionInputs, DeviceOutputs};
use kvcache_schema::multi_head_attention::OUTPUTS;

use super::device_tensors::DeviceTensors;
use crate::call_tensors::Tensors;
use crate::definition::Definition;
use crate::error::Error;
use crate::node::Node;
use crate::operators::{
    KEY_VALUE_CACHE, KeyValueCacheNode, MULTI_HEAD_ATTENTION, MULTI_HEAD_CACHE_ATTENTION, MultiHeadAttentionNode,
    MultiHeadCacheAttentionNode, STATIC_KEY_VALUE_CACHE, StaticKeyValueCacheNode, multi_head_attention as packed,
    multi_head_cache_attention as cached, outputs,
};

pub(crate) trait DeviceCompute: Send + Sync {
    /// Loads what the device will run for a node, so that the first call takes no longer than others.
    fn prepare(&self, node: &Node<'_>, stream: &CudaStream) -> Result<(), Error>;

    /// Puts one call of the node into `stream`. What the device finds goes to the status word at `status`.
    ///
    /// # Safety
    /// `stream` is the runtime's for this call, or null, and the status word lives until the device is done with it.
    unsafe fn launch(&self, tensors: &DeviceTensors<'_>, status: u64, stream: CUstream) -> Result<(), Error>;
}

/// Makes what computes the calls of a node: checks the node's attributes and types.
pub(crate) type OnDevice = fn(&Node<'_>) -> Result<Box<dyn DeviceCompute>, Error>;

/// Every operator with a CUDA kernel, and what makes the kernel of its nodes.
static OPERATORS: [(&Definition, OnDevice); 4] = [
    (&KEY_VALUE_CACHE, |node| Ok(Box::new(KeyValueCacheNode::new(node)?))),
    (&MULTI_HEAD_ATTENTION, |node| Ok(Box::new(MultiHeadAttentionNode::new(node)?))),
    (&MULTI_HEAD_CACHE_ATTENTION, |node| Ok(Box::new(MultiHeadCacheAttentionNode::new(node)?))),
    (&STATIC_KEY_VALUE_CACHE, |node| Ok(Box::new(StaticKeyValueCacheNode::new(node)?))),
];

/// What makes the kernels of an operator's nodes, if it has a CUDA kernel.
pub(super) fn on_device(definition: &'static Definition) -> Option<OnDevice> {
    let mut operators = OPERATORS.iter();
    operators.find(|(known, _)| std::ptr::eq(*known, definition)).map(|&(_, on_device)| on_device)
}

/// Whether the host reads an operator's input of this name: bounds and counts are checked; `kvstarts[B]`, in static
/// batching `start_pos`, is the number of keys, unless these are an input, whose shape tells.
pub(super) fn is_on_host(definition: &'static Definition, input: &str) -> bool {
    match input {
        "max_seqlen" | "max_kvlen" | "decoding_batches" => true,
        "kvstarts" => !std::ptr::eq(definition, &MULTI_HEAD_ATTENTION),
        "start_pos" => std::ptr::eq(definition, &STATIC_KEY_VALUE_CACHE),
        _ => false,
    }
}

/// Nodes that store and load.
macro_rules! compute_rows {
    ($($node:ty),*) => { $(
        impl DeviceCompute for $node {
            fn prepare(&self, node: &Node<'_>, stream: &CudaStream) -> Result<(), Error> {
                let scale = self.has_scale.then(|| node.element(Self::AT.scale));
                let [t1, t2] = [Self::AT.current_key, Self::AT.cache].map(|index| node.element(index));
                Ok(self.operator.prepare_device(t1, t2, scale, stream)?)
            }

            unsafe fn launch(&self, tensors: &DeviceTensors<'_>, status: u64, stream: CUstream) -> Result<(), Error> {
                let (cache, scale) = Self::AT.state(tensors, self.has_scale)?;
                let call = self.operator.check_device(Self::AT.inputs(tensors)?, cache, scale)?;
                let [key, value] = outputs(tensors, &call.output_shape())?;
                // SAFETY: `stream` and `status` are as `launch` says.
                Ok(unsafe { call.launch_raw(DeviceOutputs { key, value }, status, stream) }?)
            }
        }
    )* };
}

compute_rows!(KeyValueCacheNode, StaticKeyValueCacheNode);

impl DeviceCompute for MultiHeadAttentionNode {
    fn prepare(&self, node: &Node<'_>, stream: &CudaStream) -> Result<(), Error> {
        Ok(self.operator.prepare_device(node.element(packed::AT.query), stream)?)
    }

    unsafe fn launch(&self, tensors: &DeviceTensors<'_>, status: u64, stream: CUstream) -> Result<(), Error> {
        let inputs = DeviceAttentionInputs {
            query: tensors.read(packed::AT.query)?,
            key: tensors.read(packed::AT.key)?,
            value: tensors.read(packed::AT.value)?,
            seqstarts: tensors.read(packed::AT.seqstarts)?,
            kvstarts: tensors.read(packed::AT.kvstarts)?,
            decoding_batches: tensors.read_on_host(packed::AT.decoding_batches)?,
            max_seqlen: tensors.read_on_host(packed::AT.max_seqlen)?,
            max_kvlen: tensors.read_on_host(packed::AT.max_kvlen)?,
            attn_mask: if self.has_mask { tensors.read_elements(packed::AT.attn_mask)? } else { None },
            exact_rows: true,
        };
        let call = self.operator.check_device(inputs)?;
        // SAFETY: `stream` and `status` are as `launch` says.
        unsafe { launch(call, self.has_mass, tensors, status, stream) }
    }
}

impl DeviceCompute for MultiHeadCacheAttentionNode {
    fn prepare(&self, node: &Node<'_>, stream: &CudaStream) -> Result<(), Error> {
        let scale = self.has_scale.then(|| node.element(cached::AT.scale));
        let [t1, t2] = [cached::QUERY, cached::AT.cache].map(|index| node.element(index));
        Ok(self.operator.prepare_device(t1, t2, scale, stream)?)
    }

    unsafe fn launch(&self, tensors: &DeviceTensors<'_>, status: u64, stream: CUstream) -> Result<(), Error> {
        let (cache, scale) = cached::AT.state(tensors, self.has_scale)?;
        let call = self.operator.check_device(self.inputs(tensors)?, cache, scale)?;
        // SAFETY: `stream` and `status` are as `launch` says.
        unsafe { launch(call, self.has_mass, tensors, status, stream) }
    }
}

/// Launches a call on the node's outputs.
///
/// # Safety
/// The conditions of [`DeviceCompute::launch`].
unsafe fn launch<'a>(
    mut call: DeviceAttentionCall<'a>,
    has_mass: bool,
    tensors: &DeviceTensors<'a>,
    status: u64,
    stream: CUstream,
) -> Result<(), Error> {
    if has_mass {
        let attention_mass = tensors.write(OUTPUTS.len(), &call.mass_shape())?;
        call = call.with_mass(attention_mass)?;
    }
    let attn_output = tensors.write(0, &call.output_shape())?;
    // SAFETY: `stream` and `status` are as `launch` says.
    Ok(unsafe { call.launch_raw_alloc(attn_output, status, stream) }?)
}
