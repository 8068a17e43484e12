#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod append;
#[cfg_attr(not(test), expect(dead_code, reason = "not wired in yet"))]
mod bits;
#[cfg_attr(not(test), expect(dead_code, reason = "not wired in yet"))]
mod cells;
mod check;
mod error;
mod journal;
mod lru;
mod manager;
mod memory;
mod pages;
mod plan;
mod prefix;
mod seq_id;
mod sequence;
mod spec;
mod state;
mod stats;
mod step;
mod tensors;
mod zeros;

pub use append::Append;
pub use cells::{find_slot, fragmentation, n_kv};
pub use error::{Error, MemoryError};
pub use kvcache_kernels::{CacheRows, Rope, RopeError, RopeStyle, Rotation, RowCopy, RowsError};
pub use kvcache_op as op;
pub use kvcache_schema as schema;
pub use manager::Manager;
pub use memory::{CacheMemory, HostMemory};
pub use seq_id::SeqId;
pub use sequence::MAX_POSITION;
pub use spec::{CacheSpec, CacheSpecBuilder, Geometry, Mode};
pub use stats::Stats;
pub use step::{Planned, Step};
