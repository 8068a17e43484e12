//! The fast kernel.
//!
//! ```text
//! for some rows at a time, as many as fit into a part of the second-level cache
//!     tile: up to ROWS of them, as many as an instruction set has registers for
//!     for each tile: quantize its rows; a block's words of codes lie by k and row, its scales behind them
//!     for some panels at a time
//!         for each tile, for each panel
//!             for each block b ascending
//!                 sums of row and 16 columns = dot products of the block's words with the panel's lines
//!                 c = fma(float(sums), scale * sa, c), ...
//!             y = c
//! ```
//!
//! Codes are unsigned in a panel, and so are they multiplied: a sum begins at `-zero point * z`, with z the sum of the
//! row's codes. Sums are exact integers, so how they are made decides nothing; all else is done by column and block, in
//! the order of the definition, by every instruction set. (Only a thread that flushes subnormal numbers to zero, which
//! ONNX Runtime's sessions do where an option says so, gives other bits where scales or outputs are that small.)
//!
//! # The files
//! Each file imports only from those below it. From the top: `kernel` (a call on the caller's threads), `dispatch` (an
//! instruction set's functions), `tile`, `activations` and `gather` (the functions, over any instruction set),
//! `x86_64`, `neon` and `portable`, `dot` (what an instruction set can do), `scratch`.

mod activations;
mod dispatch;
mod dot;
mod gather;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod scratch;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use kernel::MatmulCpu;
