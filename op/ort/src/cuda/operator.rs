//! What ONNX Runtime is told about the operator on its CUDA provider.

use std::ops::RangeInclusive;

use ort::memory::MemoryType;
use ort::operator::{KernelContext, Operator, OperatorInput, OperatorOutput, ShapeInferenceContext};

use super::kernel::CudaKernel;
use super::memory::EMULATED;
use crate::node::naming_the_node;
use crate::operator::TypedOperator;
use crate::positions::{KVSTARTS, MAX_KVLEN, MAX_SEQLEN};
use crate::unwind::guard;

/// The operator for one choice of types, on the CUDA provider. What it says of the operator is what the one for the CPU
/// says, but for where the inputs lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CudaOperator(pub(crate) TypedOperator);

/// The inputs that the host reads: `kvstarts[B]` is the outputs' length, and the bounds are checked.
const ON_HOST: [usize; 3] = [KVSTARTS, MAX_SEQLEN, MAX_KVLEN];

impl Operator for CudaOperator {
    type Kernel<'attr> = CudaKernel;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn versions(&self) -> RangeInclusive<u32> {
        self.0.versions()
    }

    fn execution_provider_type(&self) -> Option<&str> {
        (!EMULATED).then_some("CUDAExecutionProvider")
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        self.0.inputs().into_iter().enumerate().map(|(index, input)| match ON_HOST.contains(&index) {
            true => input.memory_type(MemoryType::CPUInput),
            false => input,
        })
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        self.0.outputs()
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Self::Kernel<'attr>> {
        guard(|| naming_the_node(context, || CudaKernel::new(context, self.0.0)))
    }

    fn infer_shape(&self, context: &mut ShapeInferenceContext) -> ort::Result<()> {
        self.0.infer_shape(context)
    }
}
