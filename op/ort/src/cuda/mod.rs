//! The operators on ONNX Runtime's CUDA execution provider.

mod memory;
mod nodes;
mod operator;
mod tensor;

pub(crate) use memory::is_emulated;
pub(crate) use operator::CudaOperator;
