#![doc = include_str!("../README.md")]

mod attributes;
mod cache_layout;
mod combinations;
mod element;
mod operators;
mod quant;
pub mod shape;
mod static_cache_layout;

pub use attributes::{
    AttentionAttributes, AttributeSpec, Attributes, CacheAttentionAttributes, CacheMode, FloatSpec, GatherAttributes,
    MatMulAttributes, OperatorAttributes, StaticAttributes,
};
pub use cache_layout::{Axis, CacheDims, CacheLayout, CacheStrides};
pub use combinations::TypeCombination;
pub use element::ElementType;
pub use operators::{
    DOMAINS, INPUTS, NAME, OUTPUTS, OperatorKind, Role, SCHEMA, VERSION, multi_head_attention,
    multi_head_cache_attention, quantized_gather, quantized_matmul, static_key_value_cache,
};
pub use quant::{MAX_ROTATION_ORDER, QuantBit, SCALE_FLOOR, STATIC_SCALES, rotation_order};
pub use static_cache_layout::{StaticAxis, StaticCacheDims, StaticCacheLayout, StaticCacheStrides};
