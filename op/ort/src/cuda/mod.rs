//! The operator on ONNX Runtime's CUDA execution provider.

mod kernel;
mod operator;

pub(crate) use operator::CudaOperator;

/// Whether the device is the CPU, as its driver has it that tests use: then the runtime calls the device's memory the CPU's.
pub(crate) const EMULATED: bool = cfg!(feature = "cuda-emulated");
