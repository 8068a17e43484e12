//! The operators on ONNX Runtime's CUDA execution provider.

mod kernel;
mod key_value_cache;
mod memory;
mod multi_head_attention;
mod multi_head_cache_attention;
mod operator;
mod operators;
mod static_key_value_cache;
mod tensor;

pub(crate) use memory::is_emulated;
pub(crate) use operator::CudaOperator;
