#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

// The order in which to read: `spec` and `state`; `step`, whose module tells what a step does; `sequences::edit`, what
// changes between steps; `memory::update`, when bytes move. These take pages and cells from `slots`. `session` and
// `memory::swap` bring rows to files and stores, `states` and `infllm` stand beside the manager, and `check` has all
// invariants.
mod check;
mod error;
mod infllm;
mod manager;
mod memory;
mod queries;
mod sequences;
mod session;
mod slots;
mod spec;
mod state;
mod states;
mod step;

pub use error::{Error, MemoryError};
pub use infllm::{
    BlockScore, Eviction, FarPositions, InfLlm, InfLlmConfig, InfLlmStep, Lost, Partition, infllm_partition,
    slot_stable,
};
pub use kvcache_kernels::{CacheRows, Rope, RopeError, RopeStyle, Rotation, RowCopy, RowsError};
pub use kvcache_op as op;
pub use kvcache_schema as schema;
pub use kvcache_simd::Float as MaskElement;
pub use manager::{Create, Manager};
pub use memory::block::{Block, BlockError, BlockKey, BlockKind, NoBlockKey};
pub use memory::blocks::StoreStats;
#[cfg(feature = "cuda")]
pub use memory::device::DeviceMemory;
pub use memory::store::{BlockStore, LongestBlock, StoreError, Usage, up_to_missing};
pub use memory::{CacheMemory, HostMemory};
pub use queries::Stats;
pub use sequences::SeqId;
pub use sequences::edit::{ContextShift, self_extend_positions};
pub use sequences::positions::MAX_POSITION;
pub use session::error::SessionError;
pub use session::save::Saving;
pub use slots::cells::{find_slot, fragmentation, n_kv};
pub use spec::{CacheSettings, CacheSpec, Geometry, KeyForm, Mode, ShiftLimit};
pub use states::{StateCache, StateSplit, StateStep};
pub use step::append::Append;
pub use step::mask::{MaskSpec, MaskWindow};
pub use step::{OpenStep, Planned, Step, Stepped};
