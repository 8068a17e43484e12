//! One node of a graph on the CPU provider.

use std::sync::LazyLock;
use std::thread::available_parallelism;

use kvcache_op::{IndexInputs, Inputs, Outputs};
use ort::operator::{ComputeContext, Kernel, KernelContext};

use crate::error::Error;
use crate::node::Node;
use crate::node_types::NodeTypes;
use crate::positions::{
    CACHE, CACHESTARTS, CURRENT_KEY, CURRENT_VALUE, KEY, KVSTARTS, MAX_KVLEN, MAX_SEQLEN, SCALE, SEQSTARTS, START_POS,
    VALUE,
};
use crate::tensor::CallTensors;
use crate::unwind::guard;
use crate::workers::Pool;

/// How many threads the machine runs at once.
static THREADS: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, usize::from));

/// One node of a graph.
///
/// Nothing in it changes after creation: ONNX Runtime calls one kernel from several threads at once, whatever the trait
/// [`Kernel`] says of exclusive access.
pub(crate) struct NodeKernel {
    node: Node,
}

impl NodeKernel {
    /// The kernel of the node that `context` describes, for which ONNX Runtime has chosen the operator of these types.
    ///
    /// # Errors
    /// All that is wrong with the node itself: attributes, types, and state that the caller would not own.
    pub(crate) fn new(context: &KernelContext<'_>, types: NodeTypes) -> Result<Self, Error> {
        Ok(Self { node: Node::new(context, types)? })
    }

    fn run(&self, context: &ComputeContext) -> Result<(), Error> {
        let Node { operator, types, has_scale } = &self.node;
        let tensors = CallTensors::new(context, *types);
        let inputs = Inputs {
            current_key: tensors.read(CURRENT_KEY)?,
            current_value: tensors.read(CURRENT_VALUE)?,
            indices: IndexInputs {
                seqstarts: tensors.read(SEQSTARTS)?,
                kvstarts: tensors.read(KVSTARTS)?,
                cachestarts: tensors.read(CACHESTARTS)?,
                start_pos: tensors.read(START_POS)?,
                max_seqlen: tensors.read(MAX_SEQLEN)?,
                max_kvlen: tensors.read(MAX_KVLEN)?,
            },
        };
        let scale = has_scale.then(|| tensors.modify(SCALE)).transpose()?;
        let call = operator.check(&inputs, tensors.modify(CACHE)?, scale)?;
        // The runtime may refuse an output, and a refused call leaves the cache as it was: nothing is written before
        // both.
        let shape = call.output_shape();
        let outputs = Outputs { key: tensors.write(KEY, shape)?, value: tensors.write(VALUE, shape)? };
        Ok(call.run(outputs, &Pool::new(context, *THREADS))?)
    }
}

impl Kernel for NodeKernel {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        guard(|| self.run(context))
    }
}
