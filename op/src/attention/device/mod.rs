//! The attention operators on a CUDA device: checking a call, and loading its kernels.

mod cached;
mod call;
mod packed;

pub use cached::DeviceCacheAttentionInputs;
pub use call::DeviceAttentionCall;
pub use packed::DeviceAttentionInputs;
