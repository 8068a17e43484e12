//! The operators of the library, one file each, and the list of them.

mod key_value_cache;
mod list;
pub(crate) mod multi_head_attention;
pub(crate) mod multi_head_cache_attention;
mod static_key_value_cache;

#[cfg(feature = "cuda")]
pub(crate) use key_value_cache::{KEY_VALUE_CACHE, KeyValueCacheNode, outputs};
pub(crate) use list::OPERATORS;
#[cfg(feature = "cuda")]
pub(crate) use multi_head_attention::{MULTI_HEAD_ATTENTION, MultiHeadAttentionNode};
#[cfg(feature = "cuda")]
pub(crate) use multi_head_cache_attention::{MULTI_HEAD_CACHE_ATTENTION, MultiHeadCacheAttentionNode};
#[cfg(feature = "cuda")]
pub(crate) use static_key_value_cache::{STATIC_KEY_VALUE_CACHE, StaticKeyValueCacheNode};
