//! Attention over a ragged batch: `MultiHeadAttention` over packed keys and values, `MultiHeadCacheAttention` straight
//! over the KV cache.
//!
//! An [`AttentionKernel`] gets an [`AttentionProblem`]: one call, whose tensors `kvcache-op` has already checked. Each
//! query attends over the keys and values of its own sequence. [`AttentionReference`] reads like the specification.
//!
//! Kernels need not agree bit for bit, since each has its own order of sums. But each fixes that order by the sequence
//! alone: the output of a token has the same bits whatever else is in the batch, in whatever order, on any number of
//! threads, in any layout, mode, page size and placement of the cache and, under a causal mask, whether its prompt came
//! in one call or in several.

mod cpu;
mod masking;
mod memory;
mod problem;
mod reference;
mod rows;
mod tensors;

pub use cpu::AttentionCpu;
pub use masking::{alibi_slopes, visible_keys};
pub use problem::{
    AttentionGeometry, AttentionIndices, AttentionKernel, AttentionPointers, AttentionProblem, Keys, Mask, RaggedRows,
};
pub use reference::AttentionReference;
