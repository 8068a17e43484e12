//! What ONNX Runtime is told about an operator.

use std::ops::RangeInclusive;

use kvcache_schema::VERSION;
use ort::operator::{KernelContext, Operator, OperatorInput, OperatorOutput, ShapeInferenceContext};
use ort::value::TensorElementType;

use crate::definition::Definition;
use crate::infer::infer_shape;
use crate::kernel::NodeKernel;
use crate::node::naming_the_node;
use crate::node_types::{NodeTypes, runtime_type};
use crate::signature::Role;
use crate::unwind::guard;

/// An operator for one choice of types, on the CPU provider.
#[derive(Debug, Clone)]
pub(crate) struct TypedOperator {
    pub(crate) definition: &'static Definition,
    pub(crate) types: NodeTypes,
}

impl TypedOperator {
    /// The operator for every choice of types that it is registered for.
    pub(crate) fn all(definition: &'static Definition) -> impl Iterator<Item = Self> {
        NodeTypes::all(definition.signature.inputs).into_iter().map(move |types| Self { definition, types })
    }
}

impl Operator for TypedOperator {
    type Kernel<'attr> = NodeKernel;

    fn name(&self) -> &str {
        self.definition.signature.name
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        self.definition.signature.inputs.iter().enumerate().map(|(index, input)| {
            let element = self.types.input(index).map_or(TensorElementType::Undefined, runtime_type);
            match Role::of(input).is_optional() {
                true => OperatorInput::optional(element),
                false => OperatorInput::required(element),
            }
        })
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        self.definition.signature.outputs.iter().map(|_| OperatorOutput::required(runtime_type(self.types.t1())))
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Self::Kernel<'attr>> {
        let Self { definition, types } = self;
        guard(|| naming_the_node(context, &definition.signature, || NodeKernel::new(context, definition, types)))
    }

    fn infer_shape(&self, context: &mut ShapeInferenceContext) -> ort::Result<()> {
        guard(|| infer_shape(context, &self.definition.signature, self.definition.infer_shape))
    }
}
