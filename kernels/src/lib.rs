//! The kernels of `KeyValueCache`: how bytes move between the current tokens, the cache and the outputs.
//!
//! A [`Kernel`] gets a [`Problem`]: one call of the operator, whose tensors `kvcache-op` has already checked. It stores
//! the current tokens into the cache, then loads all tokens of every sequence from it. [`Reference`] reads like the
//! specification, and every other kernel must match it bit for bit: [`Cpu`] and, with the feature `cuda`, the CUDA
//! kernels. Kernels start no threads; the caller hands them [`Workers`].
//!
//! What they share is public: [`Addressing`] maps tokens to slots, [`CacheBytes`] and [`CacheRows`] map slots to bytes,
//! a [`SharedSlice`] is a cache of which a call owns a part, [`quantize`] is the codec of one quantized head, and a
//! [`Rope`] turns keys to other positions.

mod addressing;
mod cache_bytes;
mod cache_rows;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod key_rotation;
mod problem;
pub mod quantize;
mod reference;
mod rotary;
mod rotate_keys;
mod shared_slice;
mod workers;

pub use addressing::{Addressing, Run, Segment};
pub use cache_bytes::{CacheBytes, TensorBytes};
pub use cache_rows::{CacheRows, RowCopy, RowsError};
pub use cpu::{Cpu, InstructionSet};
pub use problem::{Geometry, Indices, Kernel, Pointers, Problem, Quant, Sequence};
pub use reference::Reference;
pub use rotary::{Rope, RopeError, RopeStyle, Rotation};
pub use shared_slice::SharedSlice;
pub use workers::{Serial, Workers};
