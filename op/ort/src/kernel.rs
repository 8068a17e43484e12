//! One node of a graph on the CPU provider.

use std::sync::LazyLock;
use std::thread::available_parallelism;

use ort::operator::{ComputeContext, Kernel, KernelContext};

use crate::definition::{Compute, Definition};
use crate::error::Error;
use crate::node::Node;
use crate::node_types::NodeTypes;
use crate::tensor::CallTensors;
use crate::unwind::guard;
use crate::workers::Pool;

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
