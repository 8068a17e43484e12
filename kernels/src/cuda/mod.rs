//! The CUDA kernels and their launcher.
//!
//! The kernels are embedded in this crate as PTX. The CUDA driver is opened at run time and compiles them for its
//! device; a machine without a driver gets [`Error::NoDriver`].

mod context;
mod error;
mod launch;
mod loaded;
mod parameters;
mod pinned_memory;
mod ptx;
mod queue;
mod status;

pub use context::{available, primary_context};
pub use cudarc;
pub use error::Error;
pub use launch::{BLOCK, Launch, TooLarge};
pub use parameters::{Divisor, IndexParameters, Parameters, Strides};
pub use pinned_memory::PinnedMemory;
pub use ptx::{CacheKernel, MODULES, Module, module};
pub use queue::{PitchedCopy, Queue, Ready, Scratch};
pub use status::{Finding, Status, StatusWord};
