//! Shape inference: what is known of the outputs before a call.

use kvcache_schema::{Axis, CacheLayout};

use crate::attributes::Config;

/// The length of an axis, as far as a graph knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A number.
    Known(usize),
    /// A name that the graph gives to a number.
    Symbol(String),
    /// Nothing.
    Unknown,
}

/// What a graph knows of the inputs that decide the outputs' shape; an unknown rank is `None`.
#[derive(Debug, Clone, Copy, Default)]
pub struct InputDims<'a> {
    /// The shape of `current_key`.
    pub current_key: Option<&'a [Dim]>,
    /// The shape of `current_value`.
    pub current_value: Option<&'a [Dim]>,
    /// The shape of `cache`.
    pub cache: Option<&'a [Dim]>,
    /// The last entry of `kvstarts`, if the graph has it as a constant.
    pub total_kvlen: Option<usize>,
}

/// The shape of `key` and of `value`: (`kvstarts[B]`, H * `num_repeat`, Dh).
///
/// An input of a wrong rank tells nothing here; it is an error when the operator runs.
pub(crate) fn infer(config: &Config, inputs: &InputDims<'_>) -> [Dim; 3] {
    let axis = |shape: Option<&[Dim]>, rank: usize, axis: usize| {
        shape.filter(|shape| shape.len() == rank).map_or(Dim::Unknown, |shape| shape[axis].clone())
    };
    let best = |current_axis: usize, cache_axis: usize| {
        [
            axis(inputs.current_key, 3, current_axis),
            axis(inputs.current_value, 3, current_axis),
            axis(inputs.cache, 5, cache_axis),
        ]
        .into_iter()
        .min_by_key(|dim| match dim {
            Dim::Known(_) => 0,
            Dim::Symbol(_) => 1,
            Dim::Unknown => 2,
        })
        .unwrap_or(Dim::Unknown)
    };
    let total = inputs.total_kvlen.map_or(Dim::Unknown, Dim::Known);
    let heads = match best(1, head_axis(config.layout)) {
        Dim::Known(num_heads) => num_heads.checked_mul(config.num_repeat).map_or(Dim::Unknown, Dim::Known),
        name @ Dim::Symbol(_) if config.num_repeat == 1 => name,
        _ => Dim::Unknown,
    };
    [total, heads, best(2, 4)]
}

/// Where the heads stand in the shape of a cache.
fn head_axis(layout: CacheLayout) -> usize {
    layout.axes().into_iter().position(|axis| axis == Axis::Head).unwrap_or_default()
}
