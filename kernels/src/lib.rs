//! How `KeyValueCache` moves bytes.
//!
//! A kernel gets a [`Problem`]: operands that `kvcache-op` has already checked. It stores the current tokens into the
//! cache, then loads every sequence's tokens from it. [`Reference`] is written like the specification and judges every
//! other kernel: a [`Kernel`] is right if it gives the reference's bits. Kernels start no threads; the caller hands
//! them [`Workers`].

mod addressing;
mod cache_bytes;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod problem;
pub mod quantize;
mod reference;
mod shared_slice;
mod workers;

pub use addressing::{Addressing, Run, Segment};
pub use cache_bytes::{CacheBytes, CacheRows, RowCopy, RowsError, TensorBytes};
pub use cpu::{Cpu, InstructionSet};
pub use problem::{Geometry, Indices, Kernel, Pointers, Problem, Quant, Sequence};
pub use reference::Reference;
pub use workers::{Serial, Workers};
