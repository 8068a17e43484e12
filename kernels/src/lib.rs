#![doc = include_str!("../README.md")]

mod addressing;
mod cache_bytes;
mod cache_rows;
mod canonical_rows;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device_problem;
mod float_type;
mod key_rotation;
mod problem;
pub mod quantize;
mod reference;
mod rotary;
mod rows_error;
mod shared_slice;
mod workers;

pub use addressing::{Addressing, Run};
pub use cache_bytes::{CacheBytes, TensorBytes};
pub use cache_rows::{CacheRows, RowCopy, SlotLines};
pub use canonical_rows::LayerRows;
pub use cpu::{Cpu, RowLoader};
pub use device_problem::{AlikeSequences, DeviceAddressing, DeviceProblem, DeviceStores};
pub use float_type::{read_floats, write_floats};
pub use kvcache_simd::InstructionSet;
pub use problem::{Geometry, Indices, Kernel, Pointers, Problem, Quant, Sequence, Stores};
pub use reference::Reference;
pub use rotary::{Rope, RopeError, RopeStyle, Rotation};
pub use rows_error::RowsError;
pub use shared_slice::SharedSlice;
pub use workers::{Serial, Workers, run_each};
