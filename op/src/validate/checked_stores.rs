//! The checks of a call but for its outputs, in their order, and what is known afterwards.

use std::ptr;

use kvcache_kernels::{Geometry, Pointers, Quant, Stores};
use kvcache_schema::ElementType;

use super::alias_check::{self, AliasCheck};
use super::indices;
use super::shapes::{self, Dims};
use super::types::equal_type;
use crate::config::{self, CacheConfig, Config};
use crate::error::Error;
use crate::operands::IndexInputs;
use crate::tensor::{TensorMut, TensorRef};

/// What is known of a call whose types, shapes and memory have been checked, but no value of any tensor.
#[derive(Debug, Clone)]
pub(crate) struct CheckedTensors {
    pub(crate) geometry: Geometry,
    pub(crate) pointers: Pointers,
    /// The memory of every tensor checked so far.
    pub(crate) aliases: AliasCheck,
}

#[derive(Debug)]
pub(crate) struct CheckedStores<'a> {
    pub(crate) stores: Stores<'a>,
    /// The memory of every tensor checked so far.
    pub(crate) aliases: AliasCheck,
}

/// Checks the memory of tensors whose types and shapes have been checked. Before a layer's current tokens are known,
/// `current` is `None`.
pub(crate) fn tensors(
    config: &CacheConfig,
    t1: ElementType,
    current: Option<[&TensorRef<'_>; 2]>,
    index_inputs: &[(&'static str, &TensorRef<'_>)],
    cache: &TensorMut<'_>,
    scale: Option<&TensorMut<'_>>,
    dims: &Dims,
) -> Result<CheckedTensors, Error> {
    let mut aliases = AliasCheck::default();
    if let Some(current) = current {
        read_current(&mut aliases, current)?;
    }
    for &(name, tensor) in index_inputs {
        aliases.read(name, tensor.into())?;
    }
    aliases.write("cache", cache.into())?;
    if let Some(scale) = scale {
        match config.static_scales {
            true => aliases.read("scale", scale.into())?,
            false => aliases.write("scale", scale.into())?,
        }
    }

    let cache_strides = dims.cache.ok_or_else(|| alias_check::overflow("cache", &cache.shape))?;
    let quant = match (config.quant, scale) {
        (Some(bits), Some(scale)) => Some(Quant {
            bits,
            group: if config.static_scales { dims.head_dim.max(1) } else { config.quant_group },
            rotated: config.rotated,
            t3: scale.element,
            scale_len: alias_check::len("scale", &scale.shape)?,
            scale: dims.scale.ok_or_else(|| alias_check::overflow("scale", &scale.shape))?,
        }),
        _ => None,
    };
    let geometry = Geometry {
        batch: dims.batch,
        num_heads: dims.num_heads,
        head_dim: dims.head_dim,
        layer_idx: config.layer_idx,
        t1,
        t2: cache.element,
        quant,
        cache_len: alias_check::len("cache", &cache.shape)?,
        cache: cache_strides,
    };
    let pointers = Pointers {
        current: current.map_or([ptr::null(); 2], |tensors| tensors.map(|tensor| tensor.data)),
        cache: cache.data,
        scale: scale.map_or(ptr::null_mut(), |scale| scale.data),
    };
    Ok(CheckedTensors { geometry, pointers, aliases })
}

/// Checks types, shapes and memory, but no value of any tensor; `types` has found T1, T2 and T3 to be a legal
/// combination.
pub(crate) fn dynamic_tensors(
    config: &Config,
    t1: ElementType,
    current: Option<[&TensorRef<'_>; 2]>,
    index_inputs: &IndexInputs<'_>,
    cache: &TensorMut<'_>,
    scale: Option<&TensorMut<'_>>,
) -> Result<(CheckedTensors, Dims), Error> {
    // A scale that is given without quantization is left untouched, and may be anything.
    let scale = config.cache.quant.and(scale);
    let named = index_inputs.named();
    for (name, tensor) in named {
        equal_type(name, tensor.element, ElementType::Int64)?;
    }
    let dims = shapes::check(config, current, index_inputs, cache, scale)?;
    Ok((tensors(&config.cache, t1, current, &named, cache, scale, &dims)?, dims))
}

/// Checks everything but the outputs, and without `current` tensors everything but those. `types` has found T1, T2 and
/// T3 to be a legal combination.
pub(crate) fn stores<'a>(
    config: &Config,
    t1: ElementType,
    current: Option<[&TensorRef<'a>; 2]>,
    index_inputs: &IndexInputs<'a>,
    cache: &TensorMut<'a>,
    scale: Option<&TensorMut<'a>>,
) -> Result<CheckedStores<'a>, Error> {
    let (tensors, dims) = dynamic_tensors(config, t1, current, index_inputs, cache, scale)?;
    let CheckedTensors { geometry, pointers, aliases } = tensors;
    let total_seqlen = current.map(|[key, _]| key.shape[0]);
    let indices = indices::check(config, index_inputs, &dims, total_seqlen)?;
    // SAFETY: `types` has checked the types, `dynamic_tensors` shapes, alignment and overlap, `indices::check` the
    // indices. Each tensor's memory is valid for 'a, as a slice or by `from_raw_parts`, for reads or writes of its
    // shape, and borrowed so that no other call writes it. Without `current`, `layer` is what the stores are used for.
    Ok(CheckedStores { stores: unsafe { Stores::assume_checked(geometry, indices, pointers) }, aliases })
}

impl CheckedStores<'_> {
    /// The stores of one layer, with the current tokens of the layer, which are checked here.
    pub(crate) fn layer<'c>(
        &'c mut self,
        num_layer: usize,
        layer_idx: usize,
        current: [&TensorRef<'c>; 2],
    ) -> Result<CheckedStores<'c>, Error> {
        let geometry = self.stores.geometry();
        let expected = [self.stores.total_seqlen(), geometry.num_heads, geometry.head_dim];
        let reason = "the shape (seqstarts[B], H, Dh) of this call";
        config::layer_idx(layer_idx, num_layer)?;
        let aliases = current_of_layer(geometry.t1, current, (&expected, reason), &self.aliases)?;
        // SAFETY: the cache has `num_layer` layers, and this one is among them, checked above. The current tokens have
        // been checked, and their memory is valid for reads for 'c, as `TensorRef`s.
        let stores = unsafe { self.stores.layer(layer_idx, current.map(|tensor| tensor.data)) };
        Ok(CheckedStores { stores, aliases })
    }
}

pub(crate) const CURRENT: [&str; 2] = ["current_key", "current_value"];

/// Checks the current tokens of one layer of a call of which all else has been checked, with the shape that they must
/// have and what decides it. Returns the memory of all.
fn current_of_layer(
    t1: ElementType,
    current: [&TensorRef<'_>; 2],
    (shape, reason): (&[usize], &'static str),
    aliases: &AliasCheck,
) -> Result<AliasCheck, Error> {
    for (name, tensor) in CURRENT.into_iter().zip(current) {
        equal_type(name, tensor.element, t1)?;
        shapes::equal(name, &tensor.shape, shape, reason)?;
    }
    let mut aliases = aliases.clone();
    read_current(&mut aliases, current)?;
    Ok(aliases)
}

fn read_current(aliases: &mut AliasCheck, current: [&TensorRef<'_>; 2]) -> Result<(), Error> {
    CURRENT.into_iter().zip(current).try_for_each(|(name, tensor)| aliases.read(name, tensor.into()))
}
