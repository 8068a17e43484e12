//! Checks the attributes of a node.

use kvcache_schema::{QuantBit, StaticAttributes, StaticCacheLayout};

use crate::attributes;
use crate::error::Error;

/// Attributes that have been checked, as the types that they stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StaticConfig {
    pub(crate) num_layer: usize,
    pub(crate) layer_idx: usize,
    pub(crate) quant: Option<QuantBit>,
    pub(crate) quant_group: usize,
    pub(crate) num_repeat: usize,
    pub(crate) layout: StaticCacheLayout,
}

impl StaticConfig {
    /// Checks every attribute: first its own range, then the rules that involve a second attribute.
    pub(crate) fn new(attributes: &StaticAttributes) -> Result<Self, Error> {
        attributes::ranges(&StaticAttributes::SPEC, attributes)?;
        let &StaticAttributes { num_layer, layer_idx, quant_bit, quant_group, num_repeat, cache_layout } = attributes;
        attributes::layer_idx(layer_idx as usize, num_layer as usize)?;
        let quant = attributes::quant(quant_bit, quant_group)?;
        let Some(layout) = StaticCacheLayout::from_code(cache_layout) else {
            unreachable!("the range of cache_layout is that of its codes");
        };
        Ok(Self {
            num_layer: num_layer as usize,
            layer_idx: layer_idx as usize,
            quant,
            quant_group: quant_group as usize,
            num_repeat: num_repeat as usize,
            layout,
        })
    }
}
