//! The attention operators: `MultiHeadAttention` over packed keys and values, `MultiHeadCacheAttention` over the cache.

mod backend;
mod cached;
mod call;
mod config;
#[cfg(feature = "cuda")]
mod device;
mod inputs;
mod packed;
mod validate;

pub use backend::AttentionBackend;
pub use cached::{AttentionLayers, MultiHeadCacheAttention};
pub use call::AttentionCall;
#[cfg(feature = "cuda")]
pub use device::{DeviceAttentionCall, DeviceAttentionInputs, DeviceCacheAttentionInputs};
pub use inputs::{AttentionInputs, CacheAttentionInputs};
pub use packed::MultiHeadAttention;
