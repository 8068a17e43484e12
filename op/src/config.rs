//! Checks the attributes of a node, of any operator.

use kvcache_schema::{
    AttentionAttributes, AttributeSpec, Attributes, CacheLayout, CacheMode, QuantBit, STATIC_SCALES, StaticAttributes,
    StaticCacheLayout,
};

use crate::error::Error;

/// The attributes of a cache, of dynamic or static batching, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheConfig {
    pub(crate) num_layer: usize,
    pub(crate) layer_idx: usize,
    pub(crate) quant: Option<QuantBit>,
    pub(crate) quant_group: usize,
    /// Whether scales are static: `quant_group` has no effect then.
    pub(crate) static_scales: bool,
    /// Whether keys are multiplied by a Hadamard matrix before they are quantized.
    pub(crate) rotated: bool,
    pub(crate) num_repeat: usize,
}

impl CacheConfig {
    /// Checks the rules that involve two attributes; each is in its own range.
    pub(crate) fn new(
        [num_layer, layer_idx, quant_bit, quant_group, num_repeat, quant_type]: [i64; 6],
        quant_rotation: i64,
    ) -> Result<Self, Error> {
        self::layer_idx(layer_idx as usize, num_layer as usize)?;
        let quant = QuantBit::from_codes(quant_bit, quant_type);
        for (name, got) in [("quant_type", quant_type), ("quant_rotation", quant_rotation)] {
            if quant.is_none() && got != 0 {
                let expected = format!("0, because quant_bit is {quant_bit}");
                return Err(Error::AttributeOutOfRange { name, got, expected });
            }
        }
        if quant == Some(QuantBit::Four) && quant_group % 2 != 0 {
            let expected = "an even number, because quant_bit is 4".to_owned();
            return Err(Error::AttributeOutOfRange { name: "quant_group", got: quant_group, expected });
        }
        Ok(Self {
            num_layer: num_layer as usize,
            layer_idx: layer_idx as usize,
            quant,
            quant_group: quant_group as usize,
            static_scales: quant_type == STATIC_SCALES,
            rotated: quant_rotation == 1,
            num_repeat: num_repeat as usize,
        })
    }
}

/// Attributes that have been checked, as the types that they stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) cache: CacheConfig,
    pub(crate) mode: CacheMode,
    pub(crate) layout: CacheLayout,
    pub(crate) page_size: usize,
}

impl Config {
    /// Checks every attribute: first its own range, then the rules that involve a second attribute.
    pub(crate) fn new(attributes: &Attributes) -> Result<Self, Error> {
        ranges(&Attributes::SPEC, attributes)?;
        let &Attributes { num_layer, layer_idx, quant_bit, quant_group, num_repeat, page_size, quant_type, .. } =
            attributes;
        let cache = [num_layer, layer_idx, quant_bit, quant_group, num_repeat, quant_type];
        let cache = CacheConfig::new(cache, attributes.quant_rotation)?;
        let mode = CacheMode::from_code(attributes.cache_mode);
        let layout = CacheLayout::from_code(attributes.cache_layout);
        let (Some(mode), Some(layout)) = (mode, layout) else {
            unreachable!("the ranges of cache_mode and cache_layout are their codes");
        };
        Ok(Self { cache, mode, layout, page_size: page_size as usize })
    }
}

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
        let cache = CacheConfig::new([num_layer, layer_idx, quant_bit, quant_group, num_repeat, quant_type], 0)?;
        let Some(layout) = StaticCacheLayout::from_code(cache_layout) else {
            unreachable!("the range of cache_layout is its codes");
        };
        Ok(Self { cache, layout })
    }
}

/// Attributes of an attention that have been checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AttentionConfig {
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) is_causal: bool,
    pub(crate) is_alibi: bool,
    pub(crate) scale: f32,
    pub(crate) softcap: f32,
    pub(crate) local_window_size: Option<usize>,
}

impl AttentionConfig {
    /// Checks every attribute: first its own range, then that key heads divide query heads.
    pub(crate) fn new(attributes: &AttentionAttributes) -> Result<Self, Error> {
        ranges(&AttentionAttributes::SPEC, attributes)?;
        for spec in &AttentionAttributes::FLOATS {
            let got = spec.value(attributes);
            if !spec.contains(got) {
                let at_least = spec.min.map_or(String::new(), |min| format!(" of at least {min}"));
                let (got, expected) = (got.to_string(), format!("a finite number{at_least}"));
                return Err(Error::FloatOutOfRange { name: spec.name, got, expected });
            }
        }
        let &AttentionAttributes { num_heads, head_dim, is_causal, is_alibi, num_kv_heads, .. } = attributes;
        let &AttentionAttributes { scale, softcap, local_window_size, .. } = attributes;
        if num_kv_heads != 0 && num_heads % num_kv_heads != 0 {
            let expected = format!("0 or a divisor of num_heads = {num_heads}");
            return Err(Error::AttributeOutOfRange { name: "num_kv_heads", got: num_kv_heads, expected });
        }
        Ok(Self {
            num_heads: num_heads as usize,
            num_kv_heads: if num_kv_heads == 0 { num_heads } else { num_kv_heads } as usize,
            head_dim: head_dim as usize,
            is_causal: is_causal == 1,
            is_alibi: is_alibi == 1,
            scale: if scale == 0.0 { 1.0 / (head_dim as f32).sqrt() } else { scale },
            softcap,
            // -1 is no window.
            local_window_size: usize::try_from(local_window_size).ok(),
        })
    }
}

/// Checks each attribute against its own range.
pub(crate) fn ranges<A>(specs: &[AttributeSpec<A>], attributes: &A) -> Result<(), Error> {
    for spec in specs {
        let got = spec.value(attributes);
        if !spec.contains(got) {
            let expected = match (spec.one_of, spec.max, spec.not) {
                (Some(legal), ..) => format!("one of {legal:?}"),
                (None, Some(max), _) => format!("{} to {max}", spec.min),
                (None, None, None) => format!("at least {}", spec.min),
                (None, None, Some(not)) => format!("at least {} but not {not}", spec.min),
            };
            return Err(Error::AttributeOutOfRange { name: spec.name, got, expected });
        }
    }
    Ok(())
}

/// Checks that a layer is one of those that the cache has.
pub(crate) fn layer_idx(got: usize, num_layer: usize) -> Result<(), Error> {
    if got < num_layer {
        return Ok(());
    }
    let expected = format!("0 to {}, because num_layer is {num_layer}", num_layer - 1);
    Err(Error::AttributeOutOfRange { name: "layer_idx", got: i64::try_from(got).unwrap_or(i64::MAX), expected })
}
