//! The operators as `ort` registers them, and the kernels of their nodes.

use std::ops::RangeInclusive;
use std::sync::LazyLock;
use std::thread::available_parallelism;

#[cfg(feature = "cuda")]
use kvcache_op::cuda::{DeviceMut, StatusWord, primary_context};
use kvcache_op::{Checked, Operand, Operands, Workers, contain_panics};
use kvcache_schema::{OperatorKind, VERSION};
#[cfg(feature = "cuda")]
use ort::memory::MemoryType;
use ort::operator::{
    ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput,
    ShapeInferenceContext,
};
use ort::value::TensorElementType;
use smallvec::SmallVec;

#[cfg(feature = "cuda")]
use crate::cuda;
use crate::error::{Error, guard};
use crate::node::{Input, Node};
use crate::node_types::{NodeTypes, output_type, runtime_type};
use crate::shape_inference::infer_shape;
use crate::tensors;

/// An execution provider of ONNX Runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provider {
    Cpu,
    #[cfg(feature = "cuda")]
    Cuda,
}

/// An operator for one choice of types, on one provider.
pub(crate) struct TypedOperator {
    kind: OperatorKind,
    types: NodeTypes,
    provider: Provider,
}

impl TypedOperator {
    /// `domain` with the operator for every choice of types.
    pub(crate) fn add_all(
        domain: OperatorDomain,
        kind: OperatorKind,
        provider: Provider,
    ) -> ort::Result<OperatorDomain> {
        NodeTypes::all(kind)
            .into_iter()
            .map(|types| Self { kind, types, provider })
            .try_fold(domain, OperatorDomain::add)
    }
}

impl Operator for TypedOperator {
    type Kernel<'attr> = NodeKernel;

    fn name(&self) -> &str {
        self.kind.name()
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn execution_provider_type(&self) -> Option<&str> {
        match self.provider {
            Provider::Cpu => None,
            #[cfg(feature = "cuda")]
            Provider::Cuda => (!cuda::is_emulated()).then_some("CUDAExecutionProvider"),
        }
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        self.kind.inputs().iter().enumerate().map(|(index, name)| {
            let element = self.types.input(index).map_or(TensorElementType::Undefined, runtime_type);
            let input = match OperatorKind::is_optional(name) {
                true => OperatorInput::optional(element),
                false => OperatorInput::required(element),
            };
            #[cfg(feature = "cuda")]
            if self.provider == Provider::Cuda && self.kind.is_on_host(name) {
                return input.memory_type(MemoryType::CPUInput);
            }
            input
        })
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        let first = self.types.input(0).map_or(TensorElementType::Undefined, runtime_type);
        let element = output_type(self.kind, first, TensorElementType::Float32);
        let outputs = self.kind.outputs().iter().map(move |_| OperatorOutput::required(element));
        outputs.chain(self.kind.optional_output().map(|_| OperatorOutput::optional(TensorElementType::Float32)))
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Self::Kernel<'attr>> {
        // ONNX Runtime names the node when a call fails, but not here.
        let named = |reason| Error::Node {
            operator: self.kind.name(),
            name: context.node_name().unwrap_or_default(),
            reason: Box::new(reason),
        };
        guard(|| self.kernel(context).map_err(named))
    }

    fn infer_shape(&self, context: &mut ShapeInferenceContext) -> ort::Result<()> {
        guard(|| infer_shape(context, self.kind))
    }
}

impl TypedOperator {
    /// The kernel of the node that `context` describes, for which ONNX Runtime has chosen this operator.
    ///
    /// # Errors
    /// All that is wrong with the node itself; and, on a device, with that.
    fn kernel(&self, context: &KernelContext<'_>) -> Result<NodeKernel, Error> {
        let node = Node::new(context, self.kind, &self.types)?;
        #[cfg(feature = "cuda")]
        if self.provider == Provider::Cuda {
            let allocator = context.allocator(MemoryType::Default)?;
            // A negative number stands for no device; no device has this one either.
            let ordinal = usize::try_from(allocator.memory_info().device_id()).unwrap_or(usize::MAX);
            // The runtime's context is the device's primary one.
            let device = primary_context(ordinal)?;
            node.operator.prepare_device(&node.types(), &device.default_stream())?;
            return Ok(NodeKernel { node, status: Some(StatusWord::new(&device)?) });
        }
        Ok(NodeKernel {
            node,
            #[cfg(feature = "cuda")]
            status: None,
        })
    }
}

/// How many threads the machine runs at once.
static THREADS: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, usize::from));

/// One node of a graph.
///
/// Nothing in it changes after creation but the status word, which the device writes: ONNX Runtime calls one kernel
/// from several threads at once, although the trait [`Kernel`] takes `&mut self`. The crate `ort` makes these
/// references, to its box and to what is in it, before a kernel is called; its table of functions and the constructors
/// of its contexts are private, so no kernel can be called by a shared reference instead. Exclusive references that
/// exist at once, but are only read through, are undefined behavior by Stacked Borrows. By Tree Borrows they are not,
/// nor can the compiler use their exclusivity where nothing is written. So [`compute`](Kernel::compute) continues with
/// a shared reference.
pub(crate) struct NodeKernel {
    node: Node,
    /// The word to which the device writes what it finds, on CUDA.
    #[cfg(feature = "cuda")]
    status: Option<StatusWord>,
}

impl NodeKernel {
    /// Makes one call of the node.
    ///
    /// The runtime may refuse an output, and a refused call leaves the cache as it was: nothing is written before the
    /// runtime has given every output.
    fn run(&self, context: &ComputeContext) -> Result<(), Error> {
        #[cfg(feature = "cuda")]
        if let Some(status) = &self.status {
            return self.launch(context, status);
        }
        let checked = self.check(|index, input| tensors::input(context, index, input))?;
        let mut outputs = SmallVec::<[*mut u8; 2]>::new();
        for (index, output) in checked.outputs().iter().enumerate().take(self.node.outputs) {
            outputs.push(tensors::output(context, index, output)?);
        }
        // SAFETY: the node has all outputs that are not optional; the runtime has just made each of its type, in this
        // shape, and keeps it for the call.
        Ok(unsafe { checked.run_at(&outputs, &Pool { context, threads: *THREADS }) }?)
    }

    /// Checks one call of the node, whose inputs `tensor` gives.
    fn check<'a>(
        &self,
        tensor: impl Fn(usize, &Input) -> Result<Option<Operand<'a>>, Error>,
    ) -> Result<Checked<'a>, Error> {
        let mut operands = Operands::default();
        for (index, input) in self.node.inputs.iter().enumerate() {
            operands.push(input.as_ref().map_or(Ok(None), |input| tensor(index, input))?);
        }
        // SAFETY: the inputs have the node's types, which `Node::new` has checked; by `NodeTypes` indices are int64.
        unsafe { operands.assume_types_checked() };
        Ok(self.node.operator.check(operands)?)
    }

    /// Puts one call of the node into the runtime's stream.
    #[cfg(feature = "cuda")]
    fn launch(&self, context: &ComputeContext, status: &StatusWord) -> Result<(), Error> {
        // What the device found in an earlier call is told by the next one, which does nothing.
        if let Some(status) = status.take() {
            return Err(Error::EarlierCall(status));
        }
        let kind = self.node.operator.kind();
        let checked =
            self.check(|index, input| tensors::input_on_device(context, index, input, kind.is_on_host(input.name)))?;
        let mut outputs = SmallVec::<[DeviceMut<'_>; 2]>::new();
        for (index, output) in checked.outputs().iter().enumerate().take(self.node.outputs) {
            outputs.push(tensors::output_on_device(context, index, output)?);
        }
        let stream = context.stream()?.map_or(std::ptr::null_mut(), |stream| stream.as_ptr().cast());
        // SAFETY: `stream` is the runtime's for this call, on the node's device, and the runtime keeps it. The status
        // word lives as long as this kernel, and waits for the device before it is freed.
        Ok(unsafe { checked.launch_raw_alloc(outputs, status.address(), stream) }?)
    }
}

impl Kernel for NodeKernel {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        guard(|| self.run(context))
    }
}

/// The pool of the session that makes the call.
///
/// The session's options set its size, which the runtime does not tell. `threads` is how many the machine can run, the
/// default size. Where the pool is smaller, a kernel splits its work into more tasks than there are threads, which
/// costs next to nothing: a pool of one thread runs the tasks in a loop.
struct Pool<'a> {
    context: &'a ComputeContext,
    threads: usize,
}

// SAFETY: `run` is all that uses the context, and of it only `par_for`: the runtime's pool takes work from any thread.
unsafe impl Sync for Pool<'_> {}

impl Workers for Pool<'_> {
    fn threads(&self) -> usize {
        self.threads
    }

    /// # Panics
    /// If a task panics, or the pool fails: on the calling thread, after all tasks have ended. The runtime's threads
    /// never unwind.
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 {
            return (0..tasks).for_each(task);
        }
        let outcome = contain_panics(task, |task| self.context.par_for(tasks, 0, task));
        if let Err(error) = outcome {
            panic!("the thread pool of ONNX Runtime failed: {error}");
        }
    }
}
