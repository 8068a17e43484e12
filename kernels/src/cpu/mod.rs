//! The fast CPU kernel: whole rows, on the caller's threads, with the machine's widest vectors.
//!
//! Each file imports only from those below it: `kernel` (phases, threads) on `partition` and `walk`; `walk` on
//! `tiling`, `movers` and `dispatch`; `dispatch` on `x86_64`, `generic` and `portable`; these on `elements`,
//! `functions` and `block`.

#![cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no instruction set is written for this machine"))]

mod block;
mod dispatch;
mod elements;
mod functions;
mod generic;
mod kernel;
mod movers;
mod partition;
mod portable;
mod tiling;
mod walk;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use dispatch::InstructionSet;
pub use kernel::Cpu;
