//! The operator's attributes as a graph gives them: plain integers, named and defaulted as in the specification.

use crate::{CacheLayout, CacheMode, QuantBit};

/// The attributes of one `KeyValueCache` node, as integers, not yet checked.
///
/// [`Default`] gives the specification's defaults. `kvcache-op` checks them.
///
/// ```
/// use kvcache_schema::Attributes;
///
/// let attributes = Attributes { num_layer: 32, layer_idx: 5, num_repeat: 4, ..Attributes::default() };
/// assert_eq!(attributes.page_size, 128);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attributes {
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
    /// How `cachestarts` addresses the cache: a [`CacheMode`].
    pub cache_mode: i64,
    /// The order of the axes of `cache` and `scale`: a [`CacheLayout`].
    pub cache_layout: i64,
    /// Tokens in a page, in paged mode.
    pub page_size: i64,
    /// What the elements of a quantized cache are: 0 integers, 1 floats, which have `quant_bit` 8. An extension.
    pub quant_type: i64,
}

/// What the specification says of one attribute, a field of `A`.
#[derive(Debug, Clone, Copy)]
pub struct AttributeSpec<A = Attributes> {
    /// The attribute's name in a graph.
    pub name: &'static str,
    /// Whether a graph must give it. Its default is then no legal value.
    pub required: bool,
    /// The value of an absent attribute.
    pub default: i64,
    /// The smallest legal value.
    pub min: i64,
    /// The largest legal value, where there is one that does not depend on another attribute.
    pub max: Option<i64>,
    /// The only legal values between `min` and `max`, where not every one is.
    pub one_of: Option<&'static [i64]>,
    /// Reads the field that holds it.
    pub(crate) get: fn(&A) -> i64,
    /// The field, to be written.
    pub(crate) get_mut: fn(&mut A) -> &mut i64,
}

impl<A> AttributeSpec<A> {
    /// The value of this attribute in `attributes`.
    pub fn value(&self, attributes: &A) -> i64 {
        (self.get)(attributes)
    }

    /// Sets the attribute called `name`, if it is one of `specs`.
    pub(crate) fn set(specs: &[Self], attributes: &mut A, name: &str, value: i64) -> bool {
        match specs.iter().find(|spec| spec.name == name) {
            Some(spec) => {
                *(spec.get_mut)(attributes) = value;
                true
            }
            None => false,
        }
    }

    /// Gives each of `specs` its default.
    pub(crate) fn set_defaults(specs: &[Self], attributes: &mut A) {
        for spec in specs {
            *(spec.get_mut)(attributes) = spec.default;
        }
    }

    /// Whether `value` is in the attribute's own range (rules that involve a second attribute are not part of it).
    pub fn contains(&self, value: i64) -> bool {
        value >= self.min
            && self.max.is_none_or(|max| value <= max)
            && self.one_of.is_none_or(|legal| legal.contains(&value))
    }
}

/// One row of a table of attributes; the name and the field cannot differ.
macro_rules! attribute {
    ($field:ident, required, min: $min:expr) => {
        attribute!($field, required: true, default: 0, min: $min, max: None, one_of: None)
    };
    ($field:ident, default: $default:expr, min: $min:expr, max: $max:expr, one_of: $one_of:expr) => {
        attribute!($field, required: false, default: $default, min: $min, max: $max, one_of: $one_of)
    };
    (
        $field:ident,
        required: $required:expr,
        default: $default:expr,
        min: $min:expr,
        max: $max:expr,
        one_of: $one_of:expr
    ) => {
        AttributeSpec {
            name: stringify!($field),
            required: $required,
            default: $default,
            min: $min,
            max: $max,
            one_of: $one_of,
            get: |attributes| attributes.$field,
            get_mut: |attributes| &mut attributes.$field,
        }
    };
}
pub(crate) use attribute;

impl Attributes {
    /// Every attribute, in the specification's order.
    pub const SPEC: [AttributeSpec; 9] = [
        attribute!(num_layer, default: 1, min: 1, max: None, one_of: None),
        attribute!(layer_idx, default: 0, min: 0, max: None, one_of: None),
        attribute!(quant_bit, default: 0, min: 0, max: Some(8), one_of: Some(&QuantBit::CODES)),
        attribute!(quant_group, default: 8, min: 1, max: None, one_of: None),
        attribute!(num_repeat, default: 1, min: 1, max: None, one_of: None),
        attribute!(cache_mode, default: 0, min: 0, max: Some(CacheMode::ALL.len() as i64 - 1), one_of: None),
        attribute!(cache_layout, default: 0, min: 0, max: Some(CacheLayout::ALL.len() as i64 - 1), one_of: None),
        attribute!(page_size, default: 128, min: 1, max: None, one_of: None),
        attribute!(quant_type, default: 0, min: 0, max: Some(1), one_of: None),
    ];

    /// The attributes' names, in the specification's order.
    pub const NAMES: [&str; 9] = {
        let mut names = [""; 9];
        let mut i = 0;
        while i < names.len() {
            names[i] = Self::SPEC[i].name;
            i += 1;
        }
        names
    };

    /// Sets the attribute called `name`; `false` if the operator has no such attribute.
    #[must_use]
    pub fn set(&mut self, name: &str, value: i64) -> bool {
        AttributeSpec::set(&Self::SPEC, self, name, value)
    }
}

impl Default for Attributes {
    fn default() -> Self {
        let mut attributes = Self {
            num_layer: 0,
            layer_idx: 0,
            quant_bit: 0,
            quant_group: 0,
            num_repeat: 0,
            cache_mode: 0,
            cache_layout: 0,
            page_size: 0,
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
        for (i, name) in Attributes::NAMES.into_iter().enumerate() {
            let mut attributes = Attributes::default();
            assert!(attributes.set(name, 1000 + i as i64));
            for (j, spec) in Attributes::SPEC.iter().enumerate() {
                let expected = if i == j { 1000 + i as i64 } else { spec.default };
                assert_eq!(spec.value(&attributes), expected, "{} after setting {name}", spec.name);
            }
        }
        assert!(!Attributes::default().set("pagesize", 1));
    }
}
