//! The operator of static batching: all sequences of a batch have the same length and the same position.

mod attributes;
pub(crate) mod checks;
mod infer;
mod inputs;
mod layers;
mod operator;
mod static_call;

pub use infer::StaticInputDims;
pub use inputs::StaticInputs;
pub use layers::StaticLayers;
pub use operator::StaticKeyValueCache;
pub use static_call::StaticCall;
