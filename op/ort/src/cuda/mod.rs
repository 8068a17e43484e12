//! The operator on ONNX Runtime's CUDA execution provider.

mod kernel;
mod operator;

pub(crate) use operator::CudaOperator;
