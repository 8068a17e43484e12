#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod append;
mod batch;
mod bits;
mod block;
mod blocks;
mod cells;
mod check;
mod defrag;
#[cfg(feature = "cuda")]
mod device_memory;
mod edit;
mod error;
mod infllm;
mod journal;
mod keys;
mod lru;
mod manager;
mod mask;
mod mask_spec;
mod memory;
mod pages;
mod plan;
mod positions;
mod prefix;
mod queries;
mod seq_id;
mod sequence;
mod session;
mod spec;
mod spec_builder;
mod state;
mod states;
mod stats;
mod step;
mod step_state;
mod store;
mod swap;
mod tensors;
mod update;

pub use append::Append;
pub use block::{Block, BlockError, BlockKey, BlockKind, NoBlockKey};
pub use blocks::StoreStats;
pub use cells::{find_slot, fragmentation, n_kv};
#[cfg(feature = "cuda")]
pub use device_memory::DeviceMemory;
pub use edit::{ContextShift, self_extend_positions};
pub use error::{Error, MemoryError};
pub use infllm::{
    BlockScore, Eviction, FarPositions, InfLlm, InfLlmConfig, InfLlmError, InfLlmStep, Lost, Partition,
    infllm_partition, slot_stable,
};
pub use kvcache_kernels::{CacheRows, Rope, RopeError, RopeStyle, Rotation, RowCopy, RowsError};
pub use kvcache_op as op;
pub use kvcache_schema as schema;
pub use manager::{Create, Manager};
pub use mask::MaskElement;
pub use mask_spec::{MaskSpec, MaskWindow};
pub use memory::{CacheMemory, HostMemory};
pub use positions::MAX_POSITION;
pub use seq_id::SeqId;
pub use session::error::SessionError;
pub use session::save::Saving;
pub use spec::{CacheSpec, Geometry, KeyForm, Mode};
pub use spec_builder::CacheSpecBuilder;
pub use states::{StateCache, StateSplit, StateStep};
pub use stats::Stats;
pub use step::{Planned, Step};
pub use store::{BlockStore, LongestBlock, StoreError, Usage, up_to_missing};
