//! The operators' attributes as a graph gives them: plain numbers, named and defaulted as in the specification.

use crate::{CacheLayout, QuantBit, STATIC_SCALES, StaticCacheLayout};

/// What the specification says of one integer attribute, a field of `A`.
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
    /// The value between `min` and `max` that is not legal, where there is one.
    pub not: Option<i64>,
    get: fn(&A) -> i64,
    get_mut: fn(&mut A) -> &mut i64,
}

impl<A> AttributeSpec<A> {
    /// The value of this attribute in `attributes`.
    pub fn value(&self, attributes: &A) -> i64 {
        (self.get)(attributes)
    }

    fn set(specs: &[Self], attributes: &mut A, name: &str, value: i64) -> bool {
        let spec = specs.iter().find(|spec| spec.name == name);
        spec.map(|spec| *(spec.get_mut)(attributes) = value).is_some()
    }

    /// Whether `value` is in the attribute's own range (rules that involve a second attribute are not part of it).
    pub fn contains(&self, value: i64) -> bool {
        value >= self.min
            && self.max.is_none_or(|max| value <= max)
            && self.one_of.is_none_or(|legal| legal.contains(&value))
            && self.not != Some(value)
    }
}

/// What the specification says of one float attribute, a field of `A`. An absent one is 0; a legal one is finite.
#[derive(Debug, Clone, Copy)]
pub struct FloatSpec<A> {
    /// The attribute's name in a graph.
    pub name: &'static str,
    /// The smallest legal value, where there is one.
    pub min: Option<f32>,
    get: fn(&A) -> f32,
    get_mut: fn(&mut A) -> &mut f32,
}

impl<A> FloatSpec<A> {
    /// The value of this attribute in `attributes`.
    pub fn value(&self, attributes: &A) -> f32 {
        (self.get)(attributes)
    }

    /// Whether `value` is legal.
    pub fn contains(&self, value: f32) -> bool {
        value.is_finite() && self.min.is_none_or(|min| value >= min)
    }
}

/// The attributes of an operator, whichever it is.
pub trait OperatorAttributes {
    /// The name of every attribute, and whether a graph must give it, in the specification's order.
    fn names(&self) -> Vec<(&'static str, bool)>;

    /// The names of the attributes that are floats; the others are integers.
    fn floats(&self) -> Vec<&'static str>;

    /// Sets the integer attribute called `name`; `false` if the operator has no such attribute.
    #[must_use]
    fn set(&mut self, name: &str, value: i64) -> bool;

    /// Sets the float attribute called `name`; `false` if the operator has no such attribute.
    #[must_use]
    fn set_float(&mut self, name: &str, value: f32) -> bool;
}

/// Declares the attributes of an operator, each with its default, the smallest and the largest legal value, and the
/// only legal ones between these, or the one that is not. One that a graph must give has a default that is not legal.
/// Then those that are floats, each with its smallest legal value.
macro_rules! attributes {
    ($(#[$about:meta])* $Attributes:ident: $count:literal {
        $($(#[$doc:meta])* $name:ident: ($default:expr, $min:expr, $max:expr, $one_of:expr, $not:expr),)*
    }, $floats:literal {
        $($(#[$float_doc:meta])* $float:ident: $float_min:expr,)*
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $Attributes {
            $($(#[$doc])* pub $name: i64,)*
            $($(#[$float_doc])* pub $float: f32,)*
        }

        impl $Attributes {
            /// Every integer attribute, in the specification's order.
            pub const SPEC: [AttributeSpec<Self>; $count] = [
                $(AttributeSpec {
                    name: stringify!($name),
                    required: $default < $min,
                    default: $default,
                    min: $min,
                    max: $max,
                    one_of: $one_of,
                    not: $not,
                    get: |attributes| attributes.$name,
                    get_mut: |attributes| &mut attributes.$name,
                },)*
            ];

            /// Every float attribute, in the specification's order, in which they follow the integers.
            pub const FLOATS: [FloatSpec<Self>; $floats] = [
                $(FloatSpec {
                    name: stringify!($float),
                    min: $float_min,
                    get: |attributes| attributes.$float,
                    get_mut: |attributes| &mut attributes.$float,
                },)*
            ];

            /// The names of the integer attributes, in the specification's order.
            pub const NAMES: [&str; $count] = [$(stringify!($name)),*];

            /// Sets the integer attribute called `name`; `false` if the operator has no such attribute.
            #[must_use]
            pub fn set(&mut self, name: &str, value: i64) -> bool {
                AttributeSpec::set(&Self::SPEC, self, name, value)
            }

            /// Sets the float attribute called `name`; `false` if the operator has no such attribute.
            #[must_use]
            pub fn set_float(&mut self, name: &str, value: f32) -> bool {
                let spec = Self::FLOATS.into_iter().find(|spec| spec.name == name);
                spec.map(|spec| *(spec.get_mut)(self) = value).is_some()
            }
        }

        impl Default for $Attributes {
            fn default() -> Self {
                Self { $($name: $default,)* $($float: 0.0,)* }
            }
        }

        impl OperatorAttributes for $Attributes {
            fn names(&self) -> Vec<(&'static str, bool)> {
                let integers = Self::SPEC.iter().map(|spec| (spec.name, spec.required));
                integers.chain(self.floats().into_iter().map(|name| (name, false))).collect()
            }

            fn floats(&self) -> Vec<&'static str> {
                Self::FLOATS.iter().map(|spec| spec.name).collect()
            }

            fn set(&mut self, name: &str, value: i64) -> bool {
                self.set(name, value)
            }

            fn set_float(&mut self, name: &str, value: f32) -> bool {
                self.set_float(name, value)
            }
        }
    };
}

/// Attribute `cache_mode`: what `cachestarts` holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i64)]
pub enum CacheMode {
    /// `cachestarts[b]` is the slot of sequence b's first token; the others follow.
    Offset = 0,
    /// `cachestarts[b, p]` is the slot of the first token of sequence b's page p; the page's others follow.
    Paged = 1,
}

impl CacheMode {
    /// Every mode, by its code.
    pub const ALL: [Self; 2] = [Self::Offset, Self::Paged];

    /// The mode with this code in the attribute `cache_mode`, if there is one.
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.code() == code)
    }

    /// The code in the attribute `cache_mode`.
    pub const fn code(self) -> i64 {
        self as i64
    }
}

attributes! {
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
    #[derive(Eq, Hash)]
    Attributes: 10 {
        /// Number of attention layers that share the cache (L).
        num_layer: (1, 1, None, None, None),
        /// The layer of the cache that this node stores to and loads from.
        layer_idx: (0, 0, None, None, None),
        /// Width of a quantized cache element in bits; 0 is no quantization.
        quant_bit: (0, 0, Some(8), Some(&QuantBit::CODES), None),
        /// Neighbors along `head_dim` that share one scale.
        quant_group: (8, 1, None, None, None),
        /// How often each cache head is repeated in the outputs (grouped-query attention).
        num_repeat: (1, 1, None, None, None),
        /// How `cachestarts` addresses the cache: a [`CacheMode`].
        cache_mode: (0, 0, Some(CacheMode::ALL.len() as i64 - 1), None, None),
        /// The order of the axes of `cache` and `scale`: a [`CacheLayout`].
        cache_layout: (0, 0, Some(CacheLayout::ALL.len() as i64 - 1), None, None),
        /// Tokens in a page, in paged mode.
        page_size: (128, 1, None, None, None),
        /// What the elements of a quantized cache are: 0 integers, 1 floats, which have `quant_bit` 8,
        /// [`STATIC_SCALES`] floats with static scales. An extension.
        quant_type: (0, 0, Some(STATIC_SCALES), None, None),
        /// Whether the heads of keys are multiplied by a Hadamard matrix before they are quantized, 0 or 1. An
        /// extension.
        quant_rotation: (0, 0, Some(1), None, None),
    }, 0 {}
}

attributes! {
    /// The attributes of one `KeyValueCache` node of static batching, as integers, not yet checked.
    ///
    /// [`Default`] gives the specification's defaults. `kvcache-op` checks them.
    #[derive(Eq, Hash)]
    StaticAttributes: 7 {
        /// Number of attention layers that share the cache (L).
        num_layer: (1, 1, None, None, None),
        /// The layer of the cache that this node stores to and loads from.
        layer_idx: (0, 0, None, None, None),
        /// Width of a quantized cache element in bits; 0 is no quantization.
        quant_bit: (0, 0, Some(8), Some(&QuantBit::CODES), None),
        /// Neighbors along `head_dim` that share one scale.
        quant_group: (8, 1, None, None, None),
        /// How often each cache head is repeated in the outputs (grouped-query attention).
        num_repeat: (1, 1, None, None, None),
        /// The order of the axes of `cache` and `scale`: a [`StaticCacheLayout`].
        cache_layout: (0, 0, Some(StaticCacheLayout::ALL.len() as i64 - 1), None, None),
        /// What the elements of a quantized cache are: 0 integers, 1 floats, which have `quant_bit` 8. An extension.
        quant_type: (0, 0, Some(1), None, None),
    }, 0 {}
}

attributes! {
    /// The attributes of one `MultiHeadAttention` node, as numbers, not yet checked.
    ///
    /// [`Default`] gives the specification's defaults, and 0, which is not legal, to those that a graph must give.
    AttentionAttributes: 6 {
        /// Query heads (Hq).
        num_heads: (0, 1, None, None, None),
        /// Elements of a head (Dh).
        head_dim: (0, 1, None, None, None),
        /// Whether a query sees no key after its own position: 0 or 1.
        is_causal: (1, 0, Some(1), None, None),
        /// Whether scores are biased by the distance of key and query: 0 or 1.
        is_alibi: (0, 0, Some(1), None, None),
        /// Key heads (Hk). Each serves `num_heads / num_kv_heads` query heads; 0 is `num_heads`.
        num_kv_heads: (0, 0, None, None, None),
        /// Keys that a query sees at most, its own counted; -1 is no window. An extension.
        local_window_size: (-1, -1, None, None, Some(0)),
    }, 2 {
        /// What inner products are multiplied with; 0 is `1 / sqrt(head_dim)`. An extension.
        scale: None,
        /// c of `c * tanh(s / c)`, which a scaled product s becomes; 0 is none. An extension.
        softcap: Some(0.0),
    }
}

attributes! {
    /// The attributes of one `QuantizedMatMul` node, as integers, not yet checked. A graph must give all but `gate`.
    #[derive(Eq, Hash)]
    #[expect(non_snake_case, reason = "the names in a graph")]
    MatMulAttributes: 6 {
        /// Columns of the output.
        N: (0, 1, None, None, None),
        /// Columns of the input.
        K: (0, 1, None, None, None),
        /// Width of a code of the matrix in bits.
        bits: (0, 4, Some(8), Some(&[4, 8]), None),
        /// Neighbors along K that share a scale.
        block_size: (0, 16, Some(32), Some(&[16, 32]), None),
        /// Width of a code of the input in bits.
        activation_bits: (0, 8, Some(16), Some(&[8, 16]), None),
        /// What gates the rows of the input, which then have 2K columns: 0 nothing, 1 SiLU, 2 GELU.
        gate: (0, 0, Some(2), None, None),
    }, 0 {}
}

attributes! {
    /// The attributes of one `QuantizedGather` node, as integers, not yet checked. A graph must give them all.
    #[derive(Eq, Hash)]
    #[expect(non_snake_case, reason = "the names in a graph")]
    GatherAttributes: 4 {
        /// Rows of the matrix.
        N: (0, 1, None, None, None),
        /// Columns of the matrix.
        K: (0, 1, None, None, None),
        /// Width of a code in bits.
        bits: (0, 4, Some(8), Some(&[4, 8]), None),
        /// Neighbors along K that share a scale.
        block_size: (0, 16, Some(32), Some(&[16, 32]), None),
    }, 0 {}
}

/// The attributes of one `MultiHeadCacheAttention` node, as numbers, not yet checked: attributes of attention and of
/// `KeyValueCache`, whose `num_repeat` is 1.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CacheAttentionAttributes {
    /// The attributes of the attention.
    pub attention: AttentionAttributes,
    /// The attributes of the cache. `num_repeat` is no attribute of the operator and stays 1.
    pub cache: Attributes,
}

impl CacheAttentionAttributes {
    /// The attribute of `KeyValueCache` that the operator does not have.
    pub const NOT_AN_ATTRIBUTE: &str = "num_repeat";

    /// Sets the integer attribute called `name`; `false` if the operator has no such attribute.
    #[must_use]
    pub fn set(&mut self, name: &str, value: i64) -> bool {
        self.attention.set(name, value) || name != Self::NOT_AN_ATTRIBUTE && self.cache.set(name, value)
    }

    /// Sets the float attribute called `name`; `false` if the operator has no such attribute.
    #[must_use]
    pub fn set_float(&mut self, name: &str, value: f32) -> bool {
        self.attention.set_float(name, value)
    }
}

impl OperatorAttributes for CacheAttentionAttributes {
    fn names(&self) -> Vec<(&'static str, bool)> {
        let of_cache = self.cache.names().into_iter().filter(|(name, _)| *name != Self::NOT_AN_ATTRIBUTE);
        self.attention.names().into_iter().chain(of_cache).collect()
    }

    fn floats(&self) -> Vec<&'static str> {
        self.attention.floats()
    }

    fn set(&mut self, name: &str, value: i64) -> bool {
        self.set(name, value)
    }

    fn set_float(&mut self, name: &str, value: f32) -> bool {
        self.set_float(name, value)
    }
}
