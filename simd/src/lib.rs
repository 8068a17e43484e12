#![doc = include_str!("../README.md")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod e4m3;
mod float;
mod hadamard;
mod instruction_set;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod prefetch;
mod simd;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::{Avx512, VALUE_OF_NIBBLE, nibbles};
pub use e4m3::{E4M3_LEAST_NORMAL, E4M3_MAX, E4M3_ROUNDER, e4m3_from_f32, e4m3_to_f32};
pub use float::Float;
pub use hadamard::{hadamard, hadamard_over};
pub use instruction_set::{InstructionSet, amd_family, is_amd};
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use portable::Portable;
pub use prefetch::{LINE, prefetch_l1, prefetch_l2, prefetch_write};
pub use simd::{Function, MOST_LANES, Outlined, Simd};
