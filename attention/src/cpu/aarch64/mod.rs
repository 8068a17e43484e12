//! Instruction sets of aarch64.

mod neon;
