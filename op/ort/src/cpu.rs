//! The operators on ONNX Runtime's CPU provider: what the runtime is told about one, and the kernel of a node.

use std::ops::RangeInclusive;
use std::sync::LazyLock;
use std::thread::available_parallelism;

use kvcache_schema::VERSION;
use ort::operator::{
    ComputeContext, Kernel, KernelContext, Operator, OperatorInput, OperatorOutput, ShapeInferenceContext,
};
use ort::value::TensorElementType;

use crate::call_tensors::CallTensors;
use crate::definition::{Compute, Definition, Role, Signature};
use crate::error::Error;
use crate::node::{Node, naming_the_node};
use crate::node_types::{NodeTypes, runtime_type};
use crate::shape_inference::infer_shape;
use crate::unwind::guard;
use crate::workers::Pool;

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
        let Signature { outputs, optional_output, .. } = self.definition.signature;
        let outputs = outputs.iter().map(|_| OperatorOutput::required(runtime_type(self.types.t1())));
        outputs.chain(optional_output.map(|_| OperatorOutput::optional(TensorElementType::Float32)))
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Self::Kernel<'attr>> {
        let Self { definition, types } = self;
        guard(|| naming_the_node(context, &definition.signature, || NodeKernel::new(context, definition, types)))
    }

    fn infer_shape(&self, context: &mut ShapeInferenceContext) -> ort::Result<()> {
        guard(|| infer_shape(context, &self.definition.signature, self.definition.infer_shape))
    }
}

/// How many threads the machine runs at once.
static THREADS: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, usize::from));

/// One node of a graph.
///
/// Nothing in it changes after creation: ONNX Runtime calls one kernel from several threads at once, although the trait
/// [`Kernel`] takes `&mut self`. The crate `ort` makes these references, to its box and to what is in it, before a
/// kernel is called; its table of functions and the constructors of its contexts are private, so no kernel can be
/// called by a shared reference instead. Exclusive references that exist at once, but are only read through, are
/// undefined behavior by Stacked Borrows. By Tree Borrows they are not, nor can the compiler use their exclusivity
/// where nothing is written. So [`compute`](Kernel::compute) goes on with a shared reference.
pub(crate) struct NodeKernel {
    definition: &'static Definition,
    types: NodeTypes,
    compute: Box<dyn Compute>,
}

impl NodeKernel {
    /// The kernel of the node that `context` describes, for which ONNX Runtime has chosen the operator of these types.
    ///
    /// # Errors
    /// All that is wrong with the node itself: attributes, types, and state that the caller would not own.
    pub(crate) fn new(
        context: &KernelContext<'_>,
        definition: &'static Definition,
        types: &NodeTypes,
    ) -> Result<Self, Error> {
        let node = Node::new(context, &definition.signature, types)?;
        Ok(Self { definition, types: node.types().clone(), compute: (definition.on_cpu)(&node)? })
    }

    fn run(&self, context: &ComputeContext) -> Result<(), Error> {
        let tensors = CallTensors::new(context, &self.definition.signature, &self.types);
        self.compute.run(&tensors, &Pool::new(context, *THREADS))
    }
}

impl Kernel for NodeKernel {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        guard(|| self.run(context))
    }
}
