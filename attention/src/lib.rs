#![doc = include_str!("../README.md")]

mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device_attention;
mod masking;
mod problem;
mod reference;
mod rows;
mod tensors;

pub use cpu::AttentionCpu;
pub use device_attention::{DeviceAttention, DeviceKeys, DeviceMask, DevicePacked};
pub use masking::{alibi_slopes, visible_keys};
pub use problem::{
    AttentionGeometry, AttentionIndices, AttentionKernel, AttentionPointers, AttentionProblem, Keys, Mask, RaggedRows,
};
pub use reference::AttentionReference;
