//! What ONNX Runtime is told about the operator.

use std::ops::RangeInclusive;

use kvcache_schema::{INPUTS, NAME, OUTPUTS, VERSION};
use ort::operator::{KernelContext, Operator, OperatorInput, OperatorOutput, ShapeInferenceContext};

use crate::infer::infer_shape;
use crate::kernel::NodeKernel;
use crate::node::naming_the_node;
use crate::node_types::{NodeTypes, runtime_type};
use crate::positions::SCALE;
use crate::unwind::guard;

/// The operator for one choice of types, on the CPU provider.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TypedOperator(pub(crate) NodeTypes);

impl Operator for TypedOperator {
    type Kernel<'attr> = NodeKernel;

    fn name(&self) -> &str {
        NAME
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        (0..INPUTS.len()).map(|index| {
            let element = runtime_type(self.0.input(index));
            if index == SCALE { OperatorInput::optional(element) } else { OperatorInput::required(element) }
        })
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        OUTPUTS.map(|_| OperatorOutput::required(runtime_type(self.0.current_key)))
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Self::Kernel<'attr>> {
        guard(|| naming_the_node(context, || NodeKernel::new(context, self.0)))
    }

    fn infer_shape(&self, context: &mut ShapeInferenceContext) -> ort::Result<()> {
        guard(|| infer_shape(context))
    }
}
