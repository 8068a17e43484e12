#![doc = include_str!("../README.md")]
//!
//! # How a call goes
//! The source reads in this order. `operator` is any operator, made from its attributes, which `config` checks.
//! `operands` are a call's tensors. The operator's own file (`key_value_cache`, `static_batching`, `attention`,
//! `quantized_matmul`) checks them, with `validate`, and makes a [`Checked`] call (`checked`), which waits for its
//! outputs; on a device, `device` launches it. `layers` has the calls of all layers of a step.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("caches are addressed with 64 bits");

mod attention;
mod backend;
mod checked;
mod config;
mod contain_panics;
#[cfg(feature = "cuda")]
pub mod device;
#[cfg(feature = "dlpack")]
pub mod dlpack;
mod error;
mod key_value_cache;
mod layers;
mod operands;
mod operator;
mod quantized_matmul;
mod shape_inference;
mod static_batching;
mod tensor;
mod validate;

pub use attention::{
    AttentionInputs, AttentionLayers, CacheAttentionInputs, MultiHeadAttention, MultiHeadCacheAttention,
};
#[cfg(feature = "rayon")]
pub use backend::Rayon;
pub use backend::{AttentionBackend, Backend, Backends, Kernels, MatMulBackend};
pub use checked::{Checked, Output};
pub use contain_panics::{contain_panics, panic_message};
#[cfg(feature = "cuda")]
pub use device as cuda;
pub use error::Error;
pub use key_value_cache::KeyValueCache;
pub use kvcache_attention as attention_kernels;
pub use kvcache_kernels as kernels;
pub use kvcache_kernels::{Serial, Workers};
pub use kvcache_matmul as matmul_kernels;
pub use kvcache_schema as schema;
pub use kvcache_schema::{
    AttentionAttributes, Attributes, CacheAttentionAttributes, CacheLayout, CacheMode, ElementType, GatherAttributes,
    MatMulAttributes, StaticAttributes, StaticCacheLayout,
};
pub use layers::Layers;
pub use operands::{IndexInputs, Inputs, Operand, Operands, OutputRows, Outputs};
pub use operator::Operator;
pub use quantized_matmul::{GatherInputs, MatMulInputs, MatrixInputs, QuantizedGather, QuantizedMatMul};
pub use shape_inference::{Dim, InputDims};
pub use static_batching::{StaticInputDims, StaticInputs, StaticKeyValueCache};
pub use tensor::{Element, Shape, TensorMut, TensorRef};

/// The book's chapter for users of this crate, so that its examples run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/rust.md")]
struct Guide;
