//! The attributes of `KeyValueCache` of static batching: plain integers, named and defaulted as in the specification.

use crate::attributes::{AttributeSpec, attribute};
use crate::{QuantBit, StaticCacheLayout};

/// The attributes of one `KeyValueCache` node of static batching, as integers, not yet checked.
///
/// [`Default`] gives the specification's defaults. `kvcache-op` checks them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StaticAttributes {
    /// Number of attention layers that share the cache (L).
    pub num_layer: i64,
    /// The layer of the cache that this node stores to and loads from.
    pub layer_idx: i64,
    /// Width of a quantized cache element in bits; 0 is no quantization.
    pub quant_bit: i64,
    /// How many neighbors along `head_dim` share one scale.
    pub quant_group: i64,
    /// How often each cache head is repeated in the outputs (grouped-query attention).
    pub num_repeat: i64,
    /// The order of the axes of `cache` and `scale`: a [`StaticCacheLayout`].
    pub cache_layout: i64,
    /// What the elements of a quantized cache are: 0 integers, 1 floats, which have `quant_bit` 8. An extension.
    pub quant_type: i64,
}

impl StaticAttributes {
    /// Every attribute, in the specification's order.
    pub const SPEC: [AttributeSpec<Self>; 7] = [
        attribute!(num_layer, default: 1, min: 1, max: None, one_of: None),
        attribute!(layer_idx, default: 0, min: 0, max: None, one_of: None),
        attribute!(quant_bit, default: 0, min: 0, max: Some(8), one_of: Some(&QuantBit::CODES)),
        attribute!(quant_group, default: 8, min: 1, max: None, one_of: None),
        attribute!(num_repeat, default: 1, min: 1, max: None, one_of: None),
        attribute!(
            cache_layout,
            default: 0,
            min: 0,
            max: Some(StaticCacheLayout::ALL.len() as i64 - 1),
            one_of: None
        ),
        attribute!(quant_type, default: 0, min: 0, max: Some(1), one_of: None),
    ];

    /// Sets the attribute called `name`; `false` if the operator has no such attribute.
    #[must_use]
    pub fn set(&mut self, name: &str, value: i64) -> bool {
        AttributeSpec::set(&Self::SPEC, self, name, value)
    }
}

impl Default for StaticAttributes {
    fn default() -> Self {
        let mut attributes = Self {
            num_layer: 0,
            layer_idx: 0,
            quant_bit: 0,
            quant_group: 0,
            num_repeat: 0,
            cache_layout: 0,
            quant_type: 0,
        };
        AttributeSpec::set_defaults(&Self::SPEC, &mut attributes);
        attributes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_by_name_reaches_the_field_of_that_name() {
        for (i, spec) in StaticAttributes::SPEC.iter().enumerate() {
            let mut attributes = StaticAttributes::default();
            assert!(attributes.set(spec.name, 1000 + i as i64));
            for (j, other) in StaticAttributes::SPEC.iter().enumerate() {
                let expected = if i == j { 1000 + i as i64 } else { other.default };
                assert_eq!(other.value(&attributes), expected, "{} after setting {}", other.name, spec.name);
            }
        }
        assert!(!StaticAttributes::default().set("cache_mode", 0) && !StaticAttributes::default().set("page_size", 1));
    }
}
