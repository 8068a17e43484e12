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
    /// The type of `current_key`, `key` and `value`.
    pub(crate) current_key: ElementType,
    /// The type of `current_value`.
    pub(crate) current_value: ElementType,
    /// The type of `cache`.
    pub(crate) cache: ElementType,
    /// The type of `scale`, where there is one.
    pub(crate) scale: ElementType,
}

impl TypedOperator {
    /// Every choice of types that the specification has a name for, legal or not: an illegal one, and a
    /// `current_value` of another type than `current_key`, is refused when a node's kernel is made, in words that name
    /// the types. ONNX Runtime's own refusal names neither input nor type.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let currents = ElementType::T1.into_iter().flat_map(|key| ElementType::T1.map(|value| (key, value)));
        let states = ElementType::T2.into_iter().flat_map(|cache| ElementType::T3.map(|scale| (cache, scale)));
        currents.flat_map(move |(current_key, current_value)| {
            states.clone().map(move |(cache, scale)| Self { current_key, current_value, cache, scale })
        })
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
        let required = |element| OperatorInput::required(runtime_type(element));
        let index = || required(ElementType::Int64);
        [
            required(self.current_key),
            required(self.current_value),
            index(), // seqstarts
            index(), // kvstarts
            index(), // cachestarts
            index(), // start_pos
            index(), // max_seqlen
            index(), // max_kvlen
            required(self.cache),
            OperatorInput::optional(runtime_type(self.scale)),
        ]
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        let t1 = runtime_type(self.current_key);
        [OperatorOutput::required(t1), OperatorOutput::required(t1)] // key, value
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Self::Kernel<'attr>> {
        create(context, || NodeKernel::new(context, *self))
    }

    fn infer_shape(&self, context: &mut ShapeInferenceContext) -> ort::Result<()> {
        guard(|| infer_shape(context))
    }
}

/// Makes a node's kernel, and names the node if that fails: ONNX Runtime does so when a call fails, but not here.
pub(crate) fn create<K>(context: &KernelContext<'_>, new: impl FnOnce() -> Result<K, Error>) -> ort::Result<K> {
    guard(|| {
        new().map_err(|reason| Error::Node { name: context.node_name().unwrap_or_default(), reason: Box::new(reason) })
    })
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
        assert_eq!(TypedOperator::all().count(), 72);
    }
}
