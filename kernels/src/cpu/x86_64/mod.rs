//! Instruction sets of x86-64.

mod avx2;
mod avx512;
mod f16_maxima;
mod native_f16;
