//! The attention operators on a CUDA device: checking a call, and loading its kernels.

mod cached;
mod device_attention_call;
mod packed;

pub use cached::DeviceCacheAttentionInputs;
pub use device_attention_call::DeviceAttentionCall;
pub use packed::DeviceAttentionInputs;
