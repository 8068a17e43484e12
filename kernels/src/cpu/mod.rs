//! The CPU kernel: whole rows, on the caller's threads, with the machine's widest vectors.

#![cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no instruction set is written for this machine"))]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block;
mod dequantize;
mod format;
#[cfg(target_arch = "x86_64")]
mod halves;
mod kernel;
mod lanes;
mod lines;
mod phase;
mod portable;
mod prefetch;
mod quantize;
mod rows;
mod simd;
mod stage;
mod variant;
mod vector;
mod walk;

pub use kernel::Cpu;
pub use variant::InstructionSet;
