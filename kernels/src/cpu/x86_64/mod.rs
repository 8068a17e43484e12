//! Instruction sets of x86-64.

pub(super) mod avx2;
pub(super) mod avx512;
mod avx512_groups;
mod f16_maxima;
mod fence;
mod native_f16;
pub(super) mod vendor;
