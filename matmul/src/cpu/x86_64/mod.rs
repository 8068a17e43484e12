//! What only x86-64 has.

pub(super) mod avx2;
pub(super) mod avx512;
