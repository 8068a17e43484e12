//! The attention operators: `MultiHeadAttention` over packed keys and values, `MultiHeadCacheAttention` over the cache.

mod attention_call;
mod multi_head_attention;
mod multi_head_cache_attention;
pub(crate) mod queries_and_mask;

pub use attention_call::AttentionCall;
pub use multi_head_attention::{AttentionInputs, MultiHeadAttention};
pub use multi_head_cache_attention::{AttentionLayers, CacheAttentionInputs, MultiHeadCacheAttention};
