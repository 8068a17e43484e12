//! Attention as its specification has it: scalar, in float64, and without a line of the kernels.
//!
//! `ragged` is what a legal call says of sequences and heads, by its rules; `scores`, with masks and softmax, is what
//! is computed from that, and `attend` and `mass` compute it; `tolerance` says how far an implementation's result may be from it.
//! What the cache does before is the oracle of `KeyValueCache`.

mod attend;
mod mass;
pub(crate) mod predict;
mod ragged;
mod scores;
mod tolerance;

pub use attend::Attended;
pub use predict::AttentionPrediction;
