//! The CUDA kernels on the CPU, to test them without a GPU: the source that the PTX is made from, compiled by a C++
//! compiler against a shim that has the CUDA functions which the kernels use.
//!
//! A launch runs each CUDA thread as a fiber, and checks what a GPU does not report: accesses outside of all operands,
//! misaligned accesses, bytes that two threads write, shuffles and barriers that not all threads reach. The memory
//! model is not emulated: races are compute-sanitizer's, on a GPU.
//!
//! [`EmulatedCuda`] is a [`Kernel`](kvcache_kernels::Kernel) and [`EmulatedAttention`] an
//! [`AttentionKernel`](kvcache_attention::AttentionKernel); both are tested like the CPU's. [`MUTANTS`] and
//! [`ATTENTION_MUTANTS`] are the kernels with one bug each, on which the tests must fail: that proves the tests. They are
//! compiled with the feature `mutants` alone.

#![expect(missing_docs, reason = "only tests read it: what a name says is not said again")]

mod arithmetic;
mod attention;
mod kernel;
mod launch;
mod shim;

pub use arithmetic::{alibi_slope, exponential, wrong_of_float16, wrong_of_float32};
pub use attention::EmulatedAttention;
pub use kernel::EmulatedCuda;
pub use launch::{Access, DeviceMemory, Fault, KernelParameters, Operand, Order, launch};
pub use shim::{ATTENTION, ATTENTION_MUTANTS, Build, FAITHFUL, MUTANTS, ROWS, ROWS_MUTANTS};
