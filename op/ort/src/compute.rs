//! What an operator declares. Everything that ONNX Runtime asks about it follows from this.

#[cfg(feature = "cuda")]
use kvcache_op::cuda::cudarc::driver::{CudaStream, sys::CUstream};
use kvcache_op::{Dim, Workers};

#[cfg(feature = "cuda")]
use crate::cuda::DeviceTensors;
use crate::error::Error;
use crate::node::Node;
use crate::shape_inference::Inference;
use crate::signature::Signature;
use crate::tensors::HostTensors;

/// An operator of the library, and what computes a node of it. ONNX Runtime calls one node from several threads at once.
pub(crate) trait Compute: Sized + Send + Sync + 'static {
    const SIGNATURE: Signature;

    /// What computes `node`. Checks its attributes, and that its types go together.
    fn new(node: &Node<'_>) -> Result<Self, Error>;

    /// The shape of the outputs, as far as a graph knows it.
    fn infer_shape(node: &Inference<'_>) -> Result<Vec<Dim>, Error>;

    /// Makes one call of the node on the CPU, on the threads of `workers`.
    ///
    /// The runtime may refuse an output, and a refused call leaves the cache as it was: nothing is written before the
    /// runtime has given every output.
    fn run(&self, tensors: &HostTensors<'_>, workers: &dyn Workers) -> Result<(), Error>;

    /// Loads what the device will run for `node`, so that the first call takes no longer than others.
    #[cfg(feature = "cuda")]
    fn prepare(&self, _node: &Node<'_>, _stream: &CudaStream) -> Result<(), Error> {
        unreachable!("not registered for CUDA")
    }

    /// Puts one call of the node into `stream`. What the device finds goes to the status word at `status`. (As `prepare`,
    /// it is not called where the signature is not `on_cuda`.)
    ///
    /// # Safety
    /// `stream` is the runtime's for this call, or null, and the status word lives until the device is done with it.
    #[cfg(feature = "cuda")]
    unsafe fn launch(&self, _tensors: &DeviceTensors<'_>, _status: u64, _stream: CUstream) -> Result<(), Error> {
        unreachable!("not registered for CUDA")
    }
}

/// The position of an input of the operator `$operator`, known when it is compiled.
macro_rules! at {
    ($operator:ty, $input:literal) => {
        const { $crate::signature::position(<$operator as $crate::compute::Compute>::SIGNATURE.inputs, $input) }
    };
}
pub(crate) use at;
