//! The operators as `ort` registers them, and the kernels of their nodes.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::LazyLock;
use std::thread::available_parallelism;

#[cfg(feature = "cuda")]
use kvcache_op::cuda::{StatusWord, primary_context};
use kvcache_schema::VERSION;
#[cfg(feature = "cuda")]
use ort::memory::MemoryType;
use ort::operator::{
    ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput,
    ShapeInferenceContext,
};
use ort::value::TensorElementType;

use crate::compute::Compute;
#[cfg(feature = "cuda")]
use crate::cuda::{self, DeviceTensors};
use crate::error::{Error, guard};
use crate::node::Node;
use crate::node_types::{NodeTypes, runtime_type};
use crate::shape_inference::infer_shape;
use crate::signature::{Role, Signature};
use crate::tensors::HostTensors;
use crate::workers::Pool;

/// An execution provider of ONNX Runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provider {
    Cpu,
    #[cfg(feature = "cuda")]
    Cuda,
}

/// An operator for one choice of types, on one provider.
pub(crate) struct TypedOperator<C> {
    types: NodeTypes,
    provider: Provider,
    operator: PhantomData<C>,
}

impl<C: Compute> TypedOperator<C> {
    /// `domain` with the operator for every choice of types.
    pub(crate) fn add_all(domain: OperatorDomain, provider: Provider) -> ort::Result<OperatorDomain> {
        let typed = |types| Self { types, provider, operator: PhantomData };
        NodeTypes::all(C::SIGNATURE.inputs).into_iter().map(typed).try_fold(domain, OperatorDomain::add)
    }

    fn signature(&self) -> &'static Signature {
        const { &C::SIGNATURE }
    }
}

impl<C: Compute> Operator for TypedOperator<C> {
    type Kernel<'attr> = NodeKernel<C>;

    fn name(&self) -> &str {
        C::SIGNATURE.name
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
        self.signature().inputs.iter().enumerate().map(|(index, name)| {
            let element = self.types.input(index).map_or(TensorElementType::Undefined, runtime_type);
            let input = match Role::of(name).is_optional() {
                true => OperatorInput::optional(element),
                false => OperatorInput::required(element),
            };
            #[cfg(feature = "cuda")]
            if self.provider == Provider::Cuda && cuda::is_on_host(self.signature().inputs, name) {
                return input.memory_type(MemoryType::CPUInput);
            }
            input
        })
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        let Signature { outputs, optional_output, output_type, .. } = self.signature();
        let element = runtime_type(output_type.unwrap_or(self.types.t1()));
        let outputs = outputs.iter().map(move |_| OperatorOutput::required(element));
        outputs.chain(optional_output.map(|_| OperatorOutput::optional(TensorElementType::Float32)))
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<Self::Kernel<'attr>> {
        // ONNX Runtime names the node when a call fails, but not here.
        let named = |reason| Error::Node {
            operator: C::SIGNATURE.name,
            name: context.node_name().unwrap_or_default(),
            reason: Box::new(reason),
        };
        guard(|| self.kernel(context).map_err(named))
    }

    fn infer_shape(&self, context: &mut ShapeInferenceContext) -> ort::Result<()> {
        guard(|| infer_shape(context, self.signature(), C::infer_shape))
    }
}

impl<C: Compute> TypedOperator<C> {
    /// The kernel of the node that `context` describes, for which ONNX Runtime has chosen this operator.
    ///
    /// # Errors
    /// All that is wrong with the node itself: attributes, types, and state that the caller would not own; and, on a
    /// device, with that.
    fn kernel(&self, context: &KernelContext<'_>) -> Result<NodeKernel<C>, Error> {
        let node = Node::new(context, self.signature(), &self.types)?;
        #[cfg(feature = "cuda")]
        if self.provider == Provider::Cuda {
            let allocator = context.allocator(MemoryType::Default)?;
            // A negative number stands for no device; no device has this one either.
            let ordinal = usize::try_from(allocator.memory_info().device_id()).unwrap_or(usize::MAX);
            // The runtime's context is the device's primary one.
            let device = primary_context(ordinal)?;
            let compute = C::new(&node)?;
            compute.prepare(&node, &device.default_stream())?;
            let status = Some(StatusWord::new(&device)?);
            return Ok(NodeKernel { types: node.types().clone(), compute, status });
        }
        Ok(NodeKernel {
            types: node.types().clone(),
            compute: C::new(&node)?,
            #[cfg(feature = "cuda")]
            status: None,
        })
    }
}

/// How many threads the machine runs at once.
static THREADS: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, usize::from));

/// One node of a graph.
///
/// Nothing in it changes after creation but the status word, which the device writes: ONNX Runtime calls one kernel from
/// several threads at once, although the trait [`Kernel`] takes `&mut self`. The crate `ort` makes these references, to
/// its box and to what is in it, before a kernel is called; its table of functions and the constructors of its contexts
/// are private, so no kernel can be called by a shared reference instead. Exclusive references that exist at once, but
/// are only read through, are undefined behavior by Stacked Borrows. By Tree Borrows they are not, nor can the compiler
/// use their exclusivity where nothing is written. So [`compute`](Kernel::compute) continues with a shared reference.
pub(crate) struct NodeKernel<C> {
    types: NodeTypes,
    compute: C,
    /// The word to which the device writes what it finds, on CUDA.
    #[cfg(feature = "cuda")]
    status: Option<StatusWord>,
}

impl<C: Compute> NodeKernel<C> {
    fn run(&self, context: &ComputeContext) -> Result<(), Error> {
        let signature = const { &C::SIGNATURE };
        #[cfg(feature = "cuda")]
        if let Some(status) = &self.status {
            // What the device found in an earlier call is told by the next one, which does nothing.
            if let Some(status) = status.take() {
                return Err(Error::EarlierCall(status));
            }
            let tensors = DeviceTensors::new(context, signature, &self.types);
            let stream = context.stream()?.map_or(std::ptr::null_mut(), |stream| stream.as_ptr().cast());
            // SAFETY: `stream` is the runtime's for this call, on the node's device, and the runtime keeps it. The
            // status word lives as long as this kernel, and waits for the device before it is freed.
            return unsafe { self.compute.launch(&tensors, status.address(), stream) };
        }
        let tensors = HostTensors::new(context, signature, &self.types);
        self.compute.run(&tensors, &Pool::new(context, *THREADS))
    }
}

impl<C: Compute> Kernel for NodeKernel<C> {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        guard(|| self.run(context))
    }
}
