#![doc = include_str!("../README.md")]

mod attributes;
mod cache_layout;
mod cache_mode;
mod combinations;
mod element;
pub mod multi_head_attention;
pub mod multi_head_cache_attention;
mod quant;
pub mod shape;
mod static_cache_layout;
pub mod static_key_value_cache;

pub use attributes::{
    AttentionAttributes, AttributeSpec, Attributes, CacheAttentionAttributes, OperatorAttributes, StaticAttributes,
};
pub use cache_layout::{Axis, CacheDims, CacheLayout, CacheStrides};
pub use cache_mode::CacheMode;
pub use combinations::TypeCombination;
pub use element::ElementType;
pub use quant::{QuantBit, SCALE_FLOOR, STATIC_SCALES};
pub use static_cache_layout::{StaticAxis, StaticCacheDims, StaticCacheLayout, StaticCacheStrides};

/// The operator's name in a graph.
pub const NAME: &str = "KeyValueCache";

/// The domains the operators are registered in: that of current exports, and that of exports before 2024-04-23.
pub const DOMAINS: [&str; 2] = ["opmx.dynamic_batching", "pmx.dynamic_batching"];

/// The operators' version in both [`DOMAINS`].
pub const VERSION: u32 = 1;

/// The names of the operator's inputs, by position.
pub const INPUTS: [&str; 10] = [
    "current_key",
    "current_value",
    "seqstarts",
    "kvstarts",
    "cachestarts",
    "start_pos",
    "max_seqlen",
    "max_kvlen",
    "cache",
    "scale",
];

/// The names of the operator's outputs, by position.
pub const OUTPUTS: [&str; 2] = ["key", "value"];

/// The operator as data: the text of `key_value_cache.yaml`.
pub const SCHEMA: &str = include_str!("../key_value_cache.yaml");
