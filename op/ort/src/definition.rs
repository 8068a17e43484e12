//! What an operator is: its names, and how its nodes are made.

use kvcache_op::Workers;

use crate::error::Error;
use crate::infer::InferShape;
use crate::node::Node;
use crate::signature::Signature;
use crate::tensor::CallTensors;

/// One operator of the library. `operators` has the list of them; all else works for any operator of the list.
#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) signature: Signature,
    /// The shape of its outputs, as far as a graph knows it.
    pub(crate) infer_shape: InferShape,
    /// A node on the CPU provider: checks its attributes and types.
    pub(crate) on_cpu: fn(&Node<'_>) -> Result<Box<dyn Compute>, Error>,
}

/// A node that computes on the CPU. ONNX Runtime calls it from several threads at once.
pub(crate) trait Compute: Send + Sync {
    /// Makes one call of the node, on the threads of `workers`.
    ///
    /// The runtime may refuse an output, and a refused call leaves the cache as it was: nothing is written before the
    /// runtime has given every output.
    fn run(&self, tensors: &CallTensors<'_>, workers: &dyn Workers) -> Result<(), Error>;
}
