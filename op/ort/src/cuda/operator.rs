//! What ONNX Runtime is told about an operator on its CUDA provider.

use std::ops::RangeInclusive;

use ort::memory::MemoryType;
use ort::operator::{KernelContext, Operator, OperatorInput, OperatorOutput, ShapeInferenceContext};

use super::kernel::{CudaKernel, OnDevice};
use super::memory::is_emulated;
use super::operators::{is_on_host, on_device};
use crate::node::naming_the_node;
use crate::operator::TypedOperator;
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
    /// The operator on the provider.
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
