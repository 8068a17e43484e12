//! The operator of static batching: all sequences of a batch have the same length and the same position.

mod attributes;
mod call;
mod infer;
mod inputs;
mod layers;
mod operator;
mod validate;

pub use call::StaticCall;
pub use infer::StaticInputDims;
pub use inputs::StaticInputs;
pub use layers::StaticLayers;
pub use operator::StaticKeyValueCache;
