//! The attention operators: `MultiHeadAttention` over packed keys and values, `MultiHeadCacheAttention` over the cache.

mod multi_head_attention;
mod multi_head_cache_attention;
mod queries_and_mask;

pub use multi_head_attention::{AttentionInputs, MultiHeadAttention};
pub use multi_head_cache_attention::{AttentionLayers, CacheAttentionInputs, MultiHeadCacheAttention};
