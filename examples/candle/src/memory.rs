//! A cache of candle's tensors as the manager's memory.

use candle_core::{Error, Result, Tensor};
use kvcache_manager::{CacheSpec, HostMemory};
use kvcache_op::{Rayon, TensorMut};

use crate::bytes::with_mut;
use crate::in_place::in_place1;

/// Gives `cache` and `scale`, made for `spec`, to `body` as the memory that the manager's plans are applied to.
///
/// # Errors
/// Tensors that are not those of `spec`, and what `body` returns.
pub fn with_memory<R>(
    spec: &CacheSpec,
    cache: &Tensor,
    scale: Option<&Tensor>,
    body: impl FnOnce(&mut HostMemory<'_>) -> Result<R>,
) -> Result<R> {
    let host = |cache: TensorMut<'_>, scale: Option<TensorMut<'_>>| {
        body(&mut HostMemory::new(spec, cache, scale, &Rayon).map_err(Error::wrap)?)
    };
    in_place1(cache, |cache| {
        with_mut("cache", spec.attributes().quant_bit, cache.0, cache.1, |cache| match scale {
            None => host(cache, None),
            Some(scale) => {
                in_place1(scale, |scale| with_mut("scale", 0, scale.0, scale.1, |scale| host(cache, Some(scale))))
            }
        })
    })
}
