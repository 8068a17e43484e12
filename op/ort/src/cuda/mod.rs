//! The operator on ONNX Runtime's CUDA execution provider.

mod kernel;
mod memory;
mod operator;
mod tensor;

pub(crate) use operator::CudaOperator;
