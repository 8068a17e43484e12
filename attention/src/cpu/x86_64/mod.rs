//! Instruction sets of x86-64.

mod avx2;
mod avx512;
pub(super) mod codes;
