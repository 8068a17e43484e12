//! The CPU kernel: whole rows, on the caller's threads.

mod kernel;
mod phase;
mod portable;
mod rows;

pub use kernel::Cpu;
