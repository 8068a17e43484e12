//! The attention operators: `MultiHeadAttention` over packed keys and values, `MultiHeadCacheAttention` over the cache.

mod attention_call;
mod backend;
mod cached;
mod config;
#[cfg(feature = "cuda")]
mod device;
mod inputs;
mod packed;
mod validate;

pub use attention_call::AttentionCall;
pub use backend::AttentionBackend;
pub use cached::{AttentionLayers, MultiHeadCacheAttention};
#[cfg(feature = "cuda")]
pub use device::{DeviceAttentionCall, DeviceAttentionInputs, DeviceCacheAttentionInputs};
pub use inputs::{AttentionInputs, CacheAttentionInputs};
pub use packed::MultiHeadAttention;
