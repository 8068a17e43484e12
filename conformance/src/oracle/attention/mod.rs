//! Attention as its specification has it: scalar, in float64, and without a line of the kernels.
//!
//! A call goes through four files: its `rules`, what it says of sequences and heads in [`ragged`], what is computed
//! from that in `attend`, and how far an implementation's result may be from it in `tolerance`. What the cache does
//! before is the oracle of `KeyValueCache`. The [`decisions`] are what a known mistake changes.

mod attend;
pub mod decisions;
mod predict;
pub mod ragged;
mod rules;
mod tolerance;

pub use attend::Attended;
pub use predict::{AttentionPrediction, KnownCall};
