//! `KeyValueCache` and `MultiHeadCacheAttention` on [candle](https://docs.rs/candle-core)'s tensors.
//!
//! Caches are candle's tensors too, written in place: all clones and views of one see it, and nothing of a cache is
//! copied. candle has no int8, so the codes of a quantized cache are bytes (`DType::U8`): with `quant_bit` 8 in the
//! cache's shape, with `quant_bit` 4 two in a byte, the last axis `head_dim / 2`.

mod bytes;
mod in_place;
mod operators;

pub use bytes::with_memory;
pub use operators::{key_value_cache, multi_head_cache_attention};
