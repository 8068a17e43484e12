//! The operators on ONNX Runtime's CUDA provider: what the runtime is told about one, and the kernel of a node.

use std::ops::RangeInclusive;
use std::ptr;

use kvcache_op::cuda::{LaunchError, StatusWord, primary_context};
use ort::memory::MemoryType;
use ort::operator::{
    ComputeContext, Kernel, KernelContext, Operator, OperatorInput, OperatorOutput, ShapeInferenceContext,
};

use super::device_tensors::DeviceTensors;
use super::nodes::{DeviceCompute, OnDevice, is_on_host, on_device};
use super::place::is_emulated;
use crate::call_tensors::CallTensors;
use crate::cpu::TypedOperator;
use crate::definition::Definition;
use crate::error::Error;
use crate::node::{Node, naming_the_node};
use crate::node_types::NodeTypes;
use crate::unwind::guard;

/// An operator for one choice of types, on the CUDA provider. What it says of the operator is what the one for the CPU
/// says, but for where the inputs lie.
///
/// An operator without a CUDA kernel is registered too, and refuses its nodes: otherwise the runtime would put them on
/// the CPU, with copies of a cache that lies on the device, and what they store would be lost.
#[derive(Debug, Clone)]
pub(crate) struct CudaOperator {
    typed: TypedOperator,
    on_device: Option<OnDevice>,
}

impl CudaOperator {
    pub(crate) fn new(typed: TypedOperator) -> Self {
        Self { on_device: on_device(typed.definition), typed }
    }
}

impl Operator for CudaOperator {
    type Kernel<'attr> = CudaKernel;

    fn name(&self) -> &str {
        self.typed.name()
    }

    fn versions(&self) -> RangeInclusive<u32> {
        self.typed.versions()
    }

    fn execution_provider_type(&self) -> Option<&str> {
        (!is_emulated()).then_some("CUDAExecutionProvider")
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        let definition = self.typed.definition;
        self.typed.inputs().into_iter().zip(definition.signature.inputs).map(|(input, name)| {
            match is_on_host(definition, name) {
                true => input.memory_type(MemoryType::CPUInput),
                false => input,
            }
        })
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        self.typed.outputs()
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Self::Kernel<'attr>> {
        let TypedOperator { definition, types } = &self.typed;
        guard(|| {
            naming_the_node(context, &definition.signature, || {
                CudaKernel::new(context, definition, types, self.on_device)
            })
        })
    }

    fn infer_shape(&self, context: &mut ShapeInferenceContext) -> ort::Result<()> {
        self.typed.infer_shape(context)
    }
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
        // The runtime's context is the device's primary one.
        let context = primary_context(ordinal)?;
        let compute = on_device(&node)?;
        compute.prepare(&node, &context.default_stream())?;
        Ok(Self { definition, types: node.types().clone(), compute, status: StatusWord::new(&context)? })
    }

    fn run(&self, context: &ComputeContext) -> Result<(), Error> {
        // What the device found in an earlier call is told by the next one, which does nothing.
        if let Some(status) = self.status.take() {
            return Err(Error::EarlierCall(status));
        }
        let tensors = DeviceTensors(CallTensors::new(context, &self.definition.signature, &self.types));
        let stream = context.stream()?.map_or(ptr::null_mut(), |stream| stream.as_ptr().cast());
        // SAFETY: `stream` is the runtime's for this call, on the device of `new`, and the runtime keeps it. The status
        // word lives as long as this kernel, and waits for the device before it is freed.
        unsafe { self.compute.launch(&tensors, self.status.address(), stream) }
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
