//! One node of a graph on the CUDA provider.

use std::ptr;

use kvcache_op::IndexInputs;
use kvcache_op::cuda::{DeviceInputs, DeviceOutputs, LaunchError, OutputRows, StatusWord, primary_context};
use ort::memory::MemoryType;
use ort::operator::{ComputeContext, Kernel, KernelContext};

use super::tensor::DeviceTensors;
use crate::error::Error;
use crate::node::Node;
use crate::node_types::NodeTypes;
use crate::positions::{
    CACHE, CACHESTARTS, CURRENT_KEY, CURRENT_VALUE, KEY, KVSTARTS, MAX_KVLEN, MAX_SEQLEN, SCALE, SEQSTARTS, START_POS,
    VALUE,
};
use crate::unwind::guard;

/// One node of a graph. As on the CPU, nothing in it changes after creation but the status word, which the device
/// writes.
pub(crate) struct CudaKernel {
    node: Node,
    status: StatusWord,
}

impl CudaKernel {
    /// The kernel of the node that `context` describes, for which ONNX Runtime has chosen the operator of these types.
    /// Loads what the device will run, so that the first call takes no longer than others.
    ///
    /// # Errors
    /// All that is wrong with the node itself, as on the CPU, or with the device.
    pub(crate) fn new(context: &KernelContext<'_>, types: NodeTypes) -> Result<Self, Error> {
        let node = Node::new(context, types)?;
        let allocator = context.allocator(MemoryType::Default)?;
        // A negative number stands for no device; no device has this one either.
        let ordinal = usize::try_from(allocator.memory_info().device_id()).unwrap_or(usize::MAX);
        // The runtime's context is the device's primary one.
        let device = primary_context(ordinal)?;
        let scale = node.has_scale.then_some(types.scale);
        node.operator.prepare_device(types.current_key, types.cache, scale, &device.default_stream())?;
        Ok(Self { node, status: StatusWord::new(&device)? })
    }

    fn run(&self, context: &ComputeContext) -> Result<(), Error> {
        // What the device found in an earlier call is told by the next one, which does nothing.
        if let Some(status) = self.status.take() {
            return Err(Error::EarlierCall(status));
        }
        let Node { operator, types, has_scale } = &self.node;
        let tensors = DeviceTensors::new(context, *types);
        let inputs = DeviceInputs {
            current_key: tensors.read(CURRENT_KEY)?,
            current_value: tensors.read(CURRENT_VALUE)?,
            indices: IndexInputs {
                seqstarts: tensors.read(SEQSTARTS)?,
                cachestarts: tensors.read(CACHESTARTS)?,
                start_pos: tensors.read(START_POS)?,
                kvstarts: OutputRows::Kvstarts(tensors.read_on_host(KVSTARTS)?),
                max_seqlen: tensors.read_on_host(MAX_SEQLEN)?,
                max_kvlen: tensors.read_on_host(MAX_KVLEN)?,
            },
        };
        let scale = has_scale.then(|| tensors.modify(SCALE)).transpose()?;
        let call = operator.check_device(inputs, tensors.modify(CACHE)?, scale)?;
        let shape = call.output_shape();
        let outputs = DeviceOutputs { key: tensors.write(KEY, shape)?, value: tensors.write(VALUE, shape)? };
        let stream = context.stream()?.map_or(ptr::null_mut(), |stream| stream.as_ptr().cast());
        // SAFETY: `stream` is the runtime's for this call, on the device of `new`, and the runtime keeps it. The status
        // word lives as long as this kernel, and waits for the device before it is freed.
        Ok(unsafe { call.launch_raw(outputs, self.status.address(), stream) }?)
    }
}

impl Kernel for CudaKernel {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        guard(|| self.run(context))
    }
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        Self::Cuda(error.into())
    }
}
