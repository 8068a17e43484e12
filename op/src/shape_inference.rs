//! Shape inference: the outputs' shape as far as a graph knows it.

use kvcache_schema::{Axis, CacheLayout};

use crate::config::{AttentionConfig, Config};

/// The length of an axis, as far as a graph knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A number.
    Known(usize),
    /// A symbolic dimension.
    Symbol(String),
    /// Not known.
    Unknown,
}

/// The shapes of the inputs that decide the outputs' shape, as far as a graph knows them; an unknown rank is `None`.
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
/// An input of a wrong rank is ignored here; it is an error when the operator runs.
pub(crate) fn infer(config: &Config, inputs: &InputDims<'_>) -> [Dim; 3] {
    let best = |current_axis: usize, cache_axis: usize| {
        best_known([
            axis(inputs.current_key, 3, current_axis),
            axis(inputs.current_value, 3, current_axis),
            axis(inputs.cache, 5, cache_axis),
        ])
    };
    let total = inputs.total_kvlen.map_or(Dim::Unknown, Dim::Known);
    [total, repeated(best(1, head_axis(config.layout)), config.cache.num_repeat), best(2, 4)]
}

/// The shape of `attn_output`, as far as the shape of `query` is known.
pub(crate) fn infer_attention(config: &AttentionConfig, query: Option<&[Dim]>) -> [Dim; 3] {
    [axis(query, 3, 0), Dim::Known(config.num_heads), Dim::Known(config.head_dim)]
}

/// The length of an axis of a tensor that should have this rank.
pub(crate) fn axis(shape: Option<&[Dim]>, rank: usize, axis: usize) -> Dim {
    shape.filter(|shape| shape.len() == rank).map_or(Dim::Unknown, |shape| shape[axis].clone())
}

/// The most specific of lengths that should be equal.
pub(crate) fn best_known(dims: impl IntoIterator<Item = Dim>) -> Dim {
    let ignorance = |dim: &Dim| match dim {
        Dim::Known(_) => 0,
        Dim::Symbol(_) => 1,
        Dim::Unknown => 2,
    };
    dims.into_iter().min_by_key(ignorance).unwrap_or(Dim::Unknown)
}

pub(crate) fn repeated(heads: Dim, num_repeat: usize) -> Dim {
    match heads {
        Dim::Known(num_heads) => num_heads.checked_mul(num_repeat).map_or(Dim::Unknown, Dim::Known),
        name @ Dim::Symbol(_) if num_repeat == 1 => name,
        _ => Dim::Unknown,
    }
}

fn head_axis(layout: CacheLayout) -> usize {
    layout.axes().into_iter().position(|axis| axis == Axis::Head).unwrap_or_default()
}
