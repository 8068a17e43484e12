//! The fast CPU kernel: whole rows, on the caller's threads, with the machine's widest vectors.
//!
//! Each file imports only from those below it. From the top: `rotate_keys`; `row_loader` (rows for other kernels);
//! `kernel` (phases, threads, and a thread's tokens to blocks); `store_block`, `load_block` and `rotated_rows` (a block
//! by row functions); `call_plan` (a call's functions and bytes) and `dispatch` (which row functions); `tiling` (blocks
//! by layout, sizes and machine), `x86_64` and `neon`; `generic` (row functions over any vector registers); `portable`
//! (row functions in plain Rust); `code_type` and `block` (types).

#![cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    expect(dead_code, reason = "no instruction set is written for this machine")
)]

mod block;
mod call_plan;
mod code_type;
mod dispatch;
mod generic;
mod kernel;
mod load_block;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod rotate_keys;
mod rotated_rows;
mod row_loader;
mod store_block;
mod tiling;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use kernel::Cpu;
pub(crate) use kernel::OffsetCopy;
pub use row_loader::RowLoader;
