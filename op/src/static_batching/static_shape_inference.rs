//! Shape inference: the outputs' shape as far as a graph knows it.

use kvcache_schema::StaticAxis;

use super::static_config::StaticConfig;
use crate::shape_inference::{Dim, axis, best_known, repeated};

/// What decides the outputs' shape, as far as a graph knows it; an unknown rank is `None`.
#[derive(Debug, Clone, Copy, Default)]
pub struct StaticInputDims<'a> {
    /// The shape of `current_key`.
    pub current_key: Option<&'a [Dim]>,
    /// The shape of `current_value`.
    pub current_value: Option<&'a [Dim]>,
    /// The shape of `cache`.
    pub cache: Option<&'a [Dim]>,
    /// The value of `start_pos`, if the graph has it as a constant.
    pub start_pos: Option<usize>,
}

/// The shape of `key` and of `value`: (B, `start_pos` + S, H * `num_repeat`, Dh).
///
/// An input of a wrong rank is ignored here; it is an error when the operator runs.
pub(super) fn infer(config: &StaticConfig, inputs: &StaticInputDims<'_>) -> [Dim; 4] {
    let current = |of: usize| [axis(inputs.current_key, 4, of), axis(inputs.current_value, 4, of)];
    let with_cache =
        |of: usize, in_cache: usize| best_known(current(of).into_iter().chain([axis(inputs.cache, 6, in_cache)]));
    let kvlen = match (best_known(current(1)), inputs.start_pos) {
        (Dim::Known(seqlen), Some(start_pos)) => start_pos.checked_add(seqlen).map_or(Dim::Unknown, Dim::Known),
        // Without a past, the length is that of the current tokens.
        (seqlen, Some(0)) => seqlen,
        _ => Dim::Unknown,
    };
    let head_axis = config.layout.axes().into_iter().position(|axis| axis == StaticAxis::Head).unwrap_or_default();
    [best_known(current(0)), kvlen, repeated(with_cache(2, head_axis), config.cache.num_repeat), with_cache(3, 5)]
}
