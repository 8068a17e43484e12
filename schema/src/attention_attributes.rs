//! The attributes of the attention operators: plain integers, named and defaulted as in the specification.

use crate::attributes::{AttributeSpec, Attributes, attribute};

/// The attributes of one `MultiHeadAttention` node, as integers, not yet checked.
///
/// [`Default`] gives the specification's defaults, and 0, which is not legal, to those that a graph must give.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttentionAttributes {
    /// Query heads (Hq).
    pub num_heads: i64,
    /// Elements of a head (Dh).
    pub head_dim: i64,
    /// Whether a query sees no key behind its own position: 0 or 1.
    pub is_causal: i64,
    /// Whether scores are biased by the distance of key and query: 0 or 1.
    pub is_alibi: i64,
    /// Key heads (Hk), of which each serves `num_heads / num_kv_heads` query heads; 0 is `num_heads`.
    pub num_kv_heads: i64,
}

impl AttentionAttributes {
    /// Every attribute, in the specification's order.
    pub const SPEC: [AttributeSpec<Self>; 5] = [
        attribute!(num_heads, required, min: 1),
        attribute!(head_dim, required, min: 1),
        attribute!(is_causal, default: 1, min: 0, max: Some(1), one_of: None),
        attribute!(is_alibi, default: 0, min: 0, max: Some(1), one_of: None),
        attribute!(num_kv_heads, default: 0, min: 0, max: None, one_of: None),
    ];

    /// Sets the attribute called `name`; `false` if the operator has no such attribute.
    #[must_use]
    pub fn set(&mut self, name: &str, value: i64) -> bool {
        AttributeSpec::set(&Self::SPEC, self, name, value)
    }
}

impl Default for AttentionAttributes {
    fn default() -> Self {
        let mut attributes = Self { num_heads: 0, head_dim: 0, is_causal: 0, is_alibi: 0, num_kv_heads: 0 };
        AttributeSpec::set_defaults(&Self::SPEC, &mut attributes);
        attributes
    }
}

/// The attributes of one `MultiHeadCacheAttention` node, as integers, not yet checked: those of the attention, and those
/// of `KeyValueCache` but `num_repeat`, which is 1.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct CacheAttentionAttributes {
    /// The attributes of the attention.
    pub attention: AttentionAttributes,
    /// The attributes of the cache. `num_repeat` is no attribute of the operator and stays 1.
    pub cache: Attributes,
}

impl CacheAttentionAttributes {
    /// The attribute of `KeyValueCache` that the operator does not have.
    pub const NOT_AN_ATTRIBUTE: &str = "num_repeat";

    /// Sets the attribute called `name`; `false` if the operator has no such attribute.
    #[must_use]
    pub fn set(&mut self, name: &str, value: i64) -> bool {
        self.attention.set(name, value) || name != Self::NOT_AN_ATTRIBUTE && self.cache.set(name, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_by_name_reaches_the_field_of_that_name() {
        for (i, spec) in AttentionAttributes::SPEC.iter().enumerate() {
            let mut attributes = CacheAttentionAttributes::default();
            assert!(attributes.set(spec.name, 1000 + i as i64));
            assert_eq!(attributes.cache, Attributes::default());
            for (j, other) in AttentionAttributes::SPEC.iter().enumerate() {
                let expected = if i == j { 1000 + i as i64 } else { other.default };
                assert_eq!(other.value(&attributes.attention), expected, "{} after setting {}", other.name, spec.name);
            }
        }
        let mut attributes = CacheAttentionAttributes::default();
        assert!(attributes.set("page_size", 7) && !attributes.set("num_repeat", 2));
        assert_eq!(attributes.cache, Attributes { page_size: 7, ..Attributes::default() });
        assert_eq!(attributes.attention, AttentionAttributes::default());
    }

    #[test]
    fn an_absent_attribute_is_legal_unless_it_is_required() {
        for spec in &AttentionAttributes::SPEC {
            assert_eq!(spec.contains(spec.value(&AttentionAttributes::default())), !spec.required, "{}", spec.name);
        }
    }
}
