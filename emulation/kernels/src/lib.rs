//! The CUDA kernels on the CPU: the same source that the PTX is made from, compiled by a C++ compiler against a shim.
//!
//! A launch runs each CUDA thread as a fiber and checks what a GPU would not tell: accesses outside of an operand,
//! unaligned ones, bytes that two threads write, shuffles and barriers that not all threads reach. Weak memory is not
//! modeled: for that there is compute-sanitizer on a GPU.
//!
//! [`EmulatedCuda`] is a [`Kernel`](kvcache_kernels::Kernel), so that it is held against the reference like any other.

mod arithmetic;
mod builds;
mod device_memory;
mod kernel;
mod launch;

pub use arithmetic::{wrong_of_float16, wrong_of_float32};
pub use builds::{Build, FAITHFUL, MUTANTS};
pub use device_memory::DeviceMemory;
pub use kernel::{EmulatedCuda, Failure};
pub use launch::{Access, Fault, Operand, Order, launch};
