//! Checks the attributes of a node.

use kvcache_schema::{StaticAttributes, StaticCacheLayout};

use crate::config::{CacheConfig, ranges};
use crate::error::Error;

/// Attributes that have been checked, as the types that they stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StaticConfig {
    pub(crate) cache: CacheConfig,
    pub(crate) layout: StaticCacheLayout,
}

impl StaticConfig {
    /// Checks every attribute: first its own range, then the rules that involve a second attribute.
    pub(crate) fn new(attributes: &StaticAttributes) -> Result<Self, Error> {
        ranges(&StaticAttributes::SPEC, attributes)?;
        let &StaticAttributes { num_layer, layer_idx, quant_bit, quant_group, num_repeat, cache_layout, quant_type } =
            attributes;
        let cache = CacheConfig::new([num_layer, layer_idx, quant_bit, quant_group, num_repeat, quant_type])?;
        let Some(layout) = StaticCacheLayout::from_code(cache_layout) else {
            unreachable!("the range of cache_layout is that of its codes");
        };
        Ok(Self { cache, layout })
    }
}
