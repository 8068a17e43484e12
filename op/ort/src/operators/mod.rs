//! The operators of the library: their declarations.

mod key_value_cache;
mod multi_head_attention;
mod multi_head_cache_attention;
mod quantized_matmul;

pub(crate) use key_value_cache::{KeyValueCacheNode, StaticKeyValueCacheNode};
pub(crate) use multi_head_attention::MultiHeadAttentionNode;
pub(crate) use multi_head_cache_attention::MultiHeadCacheAttentionNode;
pub(crate) use quantized_matmul::{QuantizedGatherNode, QuantizedMatMulNode};
