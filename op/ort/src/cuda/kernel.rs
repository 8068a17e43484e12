//! One node of a graph on the CUDA provider.

use std::ptr;

use kvcache_op::cuda::{DeviceInputs, DeviceOutputs, LaunchError, OutputRows, StatusWord, primary_context};
use kvcache_op::{IndexInputs, KeyValueCache};
use kvcache_schema::INPUTS;
use ort::memory::MemoryType;
use ort::operator::{ComputeContext, Kernel, KernelContext};

use crate::border::guard;
use crate::error::Error;
use crate::inputs::{
    CACHE, CACHESTARTS, CURRENT_KEY, CURRENT_VALUE, KVSTARTS, MAX_KVLEN, MAX_SEQLEN, SCALE, SEQSTARTS, START_POS,
};
use crate::kernel::{checked_operator, has_input};
use crate::operator::TypedOperator;
use crate::tensor::Operands;

/// One node of a graph. As on the CPU, nothing in it changes after creation but the status word, which the device writes.
pub(crate) struct CudaKernel {
    operator: KeyValueCache,
    status: StatusWord,
}

impl CudaKernel {
    /// The kernel of the node that `context` describes, for which ONNX Runtime has chosen these types. Loads what the device
    /// will run, so that the first call takes no longer than others.
    ///
    /// # Errors
    /// All that is wrong with the node itself, as on the CPU, or with the device.
    pub(crate) fn new(context: &KernelContext<'_>, types: TypedOperator) -> Result<Self, Error> {
        let operator = checked_operator(context, types)?;
        let allocator = context.allocator(MemoryType::Default)?;
        // No device has the number that stands for none.
        let ordinal = usize::try_from(allocator.memory_info().device_id()).unwrap_or(usize::MAX);
        // The runtime's context is the device's primary one.
        let device = primary_context(ordinal)?;
        let scale = has_input(context, SCALE)?.then_some(types.scale);
        operator.prepare_device(types.current_key, types.cache, scale, &device.default_stream())?;
        Ok(Self { operator, status: StatusWord::new(&device)? })
    }

    fn run(&self, context: &ComputeContext) -> Result<(), Error> {
        // What the device found in an earlier call is told by the next one, which does nothing.
        if let Some(status) = self.status.take() {
            return Err(Error::EarlierCall(status));
        }
        let operands = Operands(context);
        let inputs = DeviceInputs {
            current_key: operands.read_device(CURRENT_KEY)?,
            current_value: operands.read_device(CURRENT_VALUE)?,
            indices: IndexInputs {
                seqstarts: operands.read_device(SEQSTARTS)?,
                cachestarts: operands.read_device(CACHESTARTS)?,
                start_pos: operands.read_device(START_POS)?,
                kvstarts: OutputRows::Kvstarts(operands.read(KVSTARTS)?),
                max_seqlen: operands.read(MAX_SEQLEN)?,
                max_kvlen: operands.read(MAX_KVLEN)?,
            },
        };
        let cache = operands.modify_device(CACHE)?.ok_or(Error::Missing { name: INPUTS[CACHE] })?;
        let scale = operands.modify_device(SCALE)?;
        let call = self.operator.check_device(inputs, cache, scale)?;
        let shape = call.output_shape();
        let outputs = DeviceOutputs { key: operands.write_device(0, shape)?, value: operands.write_device(1, shape)? };
        let stream = context.stream()?.map_or(ptr::null_mut(), |stream| stream.as_ptr().cast());
        // SAFETY: the stream is the runtime's for this call, and lives longer. The status word lives as long as this kernel,
        // and waits for the device before it goes.
        Ok(unsafe { call.launch_raw(outputs, self.status.address(), stream) }?)
    }
}

impl Kernel for CudaKernel {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        guard(|| self.run(context))
    }
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        Self::Cuda(error.into())
    }
}
