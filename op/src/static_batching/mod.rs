//! The operator of static batching: all sequences of a batch have the same length and the same position.

pub(crate) mod checked_sequences;
mod static_call;
mod static_config;
mod static_key_value_cache;
mod static_shape_inference;

pub use static_call::StaticCall;
pub use static_key_value_cache::{StaticInputs, StaticKeyValueCache};
pub use static_shape_inference::StaticInputDims;
