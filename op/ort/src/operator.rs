//! What ONNX Runtime is told about the operator.

use std::ops::RangeInclusive;

use kvcache_op::ElementType;
use kvcache_schema::{NAME, VERSION};
use ort::operator::{KernelContext, Operator, OperatorInput, OperatorOutput, ShapeInferenceContext};

use crate::border::guard;
use crate::error::Error;
use crate::infer::infer_shape;
use crate::kernel::NodeKernel;
use crate::tensor::runtime_type;

/// The operator for one choice of types. ONNX Runtime chooses among those of one name by the types of a node's inputs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TypedOperator {
    /// The type of `current_key`, `current_value`, `key` and `value`.
    pub(crate) t1: ElementType,
    /// The type of `cache`.
    pub(crate) t2: ElementType,
    /// The type of `scale`, where there is one.
    pub(crate) t3: ElementType,
}

impl TypedOperator {
    /// Every choice of types that the specification has a name for, legal or not: an illegal one is refused when a
    /// node's kernel is made, in words that name the types. ONNX Runtime's own refusal does not.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let pairs = ElementType::T1.into_iter().flat_map(|t1| ElementType::T2.map(|t2| (t1, t2)));
        pairs.flat_map(|(t1, t2)| ElementType::T3.map(|t3| Self { t1, t2, t3 }))
    }
}

impl Operator for TypedOperator {
    type Kernel<'attr> = NodeKernel;

    fn name(&self) -> &str {
        NAME
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        let [t1, t2, t3] = [self.t1, self.t2, self.t3].map(runtime_type);
        let index = || OperatorInput::required(runtime_type(ElementType::Int64));
        [
            OperatorInput::required(t1), // current_key
            OperatorInput::required(t1), // current_value
            index(),                     // seqstarts
            index(),                     // kvstarts
            index(),                     // cachestarts
            index(),                     // start_pos
            index(),                     // max_seqlen
            index(),                     // max_kvlen
            OperatorInput::required(t2), // cache
            OperatorInput::optional(t3), // scale
        ]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(runtime_type(self.t1)), OperatorOutput::required(runtime_type(self.t1))] // key, value
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Self::Kernel<'attr>> {
        guard(|| {
            // ONNX Runtime names the node when a call fails, but not when its kernel cannot be made.
            NodeKernel::new(context, *self).map_err(|reason| Error::Node {
                name: context.node_name().unwrap_or_default(),
                reason: Box::new(reason),
            })
        })
    }

    fn infer_shape(&self, context: &mut ShapeInferenceContext) -> ort::Result<()> {
        guard(|| infer_shape(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_and_outputs_are_as_many_as_the_specification_names() {
        for operator in TypedOperator::all() {
            assert_eq!(operator.inputs().into_iter().count(), kvcache_schema::INPUTS.len());
            assert_eq!(operator.outputs().into_iter().count(), kvcache_schema::OUTPUTS.len());
        }
        assert_eq!(TypedOperator::all().count(), 24);
    }
}
