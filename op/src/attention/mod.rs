//! The attention operators: `MultiHeadAttention` over packed keys and values, `MultiHeadCacheAttention` over the cache.

mod attention_call;
mod backend;
mod cached;
mod config;
mod inputs;
mod packed;
pub(crate) mod validate;

pub use attention_call::AttentionCall;
pub use backend::AttentionBackend;
pub use cached::{AttentionLayers, MultiHeadCacheAttention};
pub(crate) use config::AttentionConfig;
pub use inputs::{AttentionInputs, CacheAttentionInputs};
pub use packed::MultiHeadAttention;
