//! One node of a graph on the CUDA provider.

use std::ffi::c_void;
use std::ptr;

use kvcache_op::cuda::{LaunchError, StatusWord, primary_context};
use ort::memory::MemoryType;
use ort::operator::{ComputeContext, Kernel, KernelContext};

use super::tensor::DeviceTensors;
use crate::definition::Definition;
use crate::error::Error;
use crate::node::Node;
use crate::node_types::NodeTypes;
use crate::unwind::guard;

/// Makes what computes the calls of a node, for a device of this ordinal: checks the node's attributes and types, and
/// loads what the device will run, so that the first call takes no longer than others.
pub(crate) type OnDevice = fn(&Node<'_>, ordinal: usize) -> Result<Box<dyn DeviceCompute>, Error>;

/// A node that computes on a device.
pub(crate) trait DeviceCompute: Send + Sync {
    /// Puts one call of the node into `stream`. What the device finds goes to `status`.
    ///
    /// # Safety
    /// `stream` is the runtime's for this call, or null, and `status` lives until the device is done with it.
    unsafe fn launch(&self, tensors: &DeviceTensors<'_>, status: &StatusWord, stream: *mut c_void)
    -> Result<(), Error>;
}

/// One node of a graph. As on the CPU, nothing in it changes after creation but the status word, which the device
/// writes.
pub(crate) struct CudaKernel {
    definition: &'static Definition,
    types: NodeTypes,
    compute: Box<dyn DeviceCompute>,
    status: StatusWord,
}

impl CudaKernel {
    /// The kernel of the node that `context` describes, for which ONNX Runtime has chosen the operator of these types.
    ///
    /// # Errors
    /// All that is wrong with the node itself, as on the CPU, or with the device; and an operator that has no kernel
    /// for it.
    pub(crate) fn new(
        context: &KernelContext<'_>,
        definition: &'static Definition,
        types: &NodeTypes,
        on_device: Option<OnDevice>,
    ) -> Result<Self, Error> {
        let on_device = on_device.ok_or(Error::NoDeviceKernel)?;
        let node = Node::new(context, &definition.signature, types)?;
        let allocator = context.allocator(MemoryType::Default)?;
        // A negative number stands for no device; no device has this one either.
        let ordinal = usize::try_from(allocator.memory_info().device_id()).unwrap_or(usize::MAX);
        let compute = on_device(&node, ordinal)?;
        // The runtime's context is the device's primary one.
        Ok(Self {
            definition,
            types: node.types().clone(),
            compute,
            status: StatusWord::new(&primary_context(ordinal)?)?,
        })
    }

    fn run(&self, context: &ComputeContext) -> Result<(), Error> {
        // What the device found in an earlier call is told by the next one, which does nothing.
        if let Some(status) = self.status.take() {
            return Err(Error::EarlierCall(status));
        }
        let tensors = DeviceTensors::new(context, &self.definition.signature, &self.types);
        let stream = context.stream()?.map_or(ptr::null_mut(), |stream| stream.as_ptr().cast());
        // SAFETY: `stream` is the runtime's for this call, on the device of `new`, and the runtime keeps it. The status
        // word lives as long as this kernel, and waits for the device before it is freed.
        unsafe { self.compute.launch(&tensors, &self.status, stream) }
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
