//! The operators on ONNX Runtime's CUDA execution provider.

mod cuda_operator;
mod device_tensors;
mod nodes;
mod place;

pub(crate) use cuda_operator::CudaOperator;
pub(crate) use place::is_emulated;
