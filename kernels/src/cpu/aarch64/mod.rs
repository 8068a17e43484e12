//! Instruction sets of aarch64.

pub(super) mod neon;
