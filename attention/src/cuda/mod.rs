//! Attention on a CUDA device: the kernels, embedded as PTX, and the launches that make a call.
//!
//! A call is up to four launches on one stream: the store of `KeyValueCache`, the attention, the sum of the pieces of
//! long decoding steps, and the mass of the keys where it is asked for. It allocates nothing (the caller brings scratch
//! memory) and does not wait for the device.
//!
//! The kernels have an order of sums of their own, fixed by a token's sequence alone, as [`AttentionReference`] has
//! (`kernel/attend.cuh` has the order): other bits than the CPU's, the same on every GPU.
//!
//! [`AttentionReference`]: crate::AttentionReference

mod launch;
mod parameters;
mod ptx;
mod units;

pub use launch::{AttentionLaunches, run};
pub use parameters::AttentionParameters;
pub use ptx::{AttentionKernelName, MODULES};
pub use units::MAX_HEAD_DIM;
