//! The checks of a whole call in their order, and what is known afterwards.

use std::ptr;

use kvcache_kernels::{Geometry, Indices, Pointers, Quant};
use kvcache_schema::{ElementType, OUTPUTS};

use super::indices;
use super::memory::{self, Extents};
use super::shapes::{self, Dims};
use super::types::equal_type;
use crate::attributes::{self, Config};
use crate::error::Error;
use crate::inputs::IndexInputs;
use crate::tensor::{Shape, TensorMut, TensorRef};

/// What is known of a call whose types, shapes and memory have been checked.
pub(crate) struct CheckedTensors {
    pub(crate) geometry: Geometry,
    pub(crate) dims: Dims,
    /// The memory of every tensor checked so far.
    pub(crate) extents: Extents,
}

/// What is known of a call of which everything but the outputs has been checked.
#[derive(Debug)]
pub(crate) struct CheckedCall<'a> {
    pub(crate) geometry: Geometry,
    pub(crate) indices: Indices<'a>,
    current: [*const u8; 2],
    cache: *mut u8,
    scale: *mut u8,
    /// The memory of every tensor checked so far.
    pub(crate) extents: Extents,
    /// The shape that `key` and `value` must have.
    pub(crate) output_shape: [usize; 3],
}

/// Checks types, shapes and memory, but no value of any tensor. Before a layer's current tokens are known, `current` is
/// `None`. [`types`](super::types) has found T1, T2 and T3 to be a legal combination.
pub(crate) fn tensors(
    config: &Config,
    t1: ElementType,
    current: Option<[&TensorRef<'_>; 2]>,
    index_inputs: &IndexInputs<'_>,
    cache: &TensorMut<'_>,
    scale: Option<&TensorMut<'_>>,
) -> Result<CheckedTensors, Error> {
    // A scale that is given without quantization is left untouched, and may be anything.
    let scale = config.quant.and(scale);
    for (name, tensor) in index_inputs.named() {
        equal_type(name, tensor.element, ElementType::Int64)?;
    }

    let dims = shapes::check(config, current, index_inputs, cache, scale)?;

    let mut extents = Extents::default();
    if let Some(current) = current {
        read_current(&mut extents, current)?;
    }
    for (name, tensor) in index_inputs.named() {
        extents.read(name, tensor.into())?;
    }
    extents.write("cache", cache.into())?;
    if let Some(scale) = scale {
        extents.write("scale", scale.into())?;
    }

    let cache_strides = config.layout.strides(dims.cache).ok_or_else(|| overflow("cache", &cache.shape))?;
    let quant = match (config.quant, scale) {
        (Some(bits), Some(scale)) => Some(Quant {
            bits,
            group: config.quant_group,
            t3: scale.element,
            scale_len: memory::len("scale", &scale.shape)?,
            scale: config.layout.strides(dims.scale).ok_or_else(|| overflow("scale", &scale.shape))?,
        }),
        _ => None,
    };
    let geometry = Geometry {
        batch: dims.batch,
        num_heads: dims.cache.num_heads,
        head_dim: dims.cache.inner,
        num_repeat: config.num_repeat,
        layer_idx: config.layer_idx,
        t1,
        t2: cache.element,
        quant,
        cache_len: memory::len("cache", &cache.shape)?,
        cache: cache_strides,
    };
    Ok(CheckedTensors { geometry, dims, extents })
}

/// Checks everything but the outputs, and without `current` tensors everything but those: the call must then not be
/// run. [`types`](super::types) has found T1, T2 and T3 to be a legal combination.
pub(crate) fn call<'a>(
    config: &Config,
    t1: ElementType,
    current: Option<[&TensorRef<'a>; 2]>,
    index_inputs: &IndexInputs<'a>,
    cache: &TensorMut<'a>,
    scale: Option<&TensorMut<'a>>,
) -> Result<CheckedCall<'a>, Error> {
    let CheckedTensors { geometry, dims, extents } = tensors(config, t1, current, index_inputs, cache, scale)?;
    let indices = indices::check(config, index_inputs, &dims)?;
    let output_shape = output_shape(&geometry, indices.kvstarts[dims.batch] as usize)?;
    Ok(CheckedCall {
        geometry,
        indices,
        current: current.map_or([ptr::null(); 2], |tensors| tensors.map(|tensor| tensor.data)),
        cache: cache.data,
        scale: config.quant.and(scale).map_or(ptr::null_mut(), |scale| scale.data),
        extents,
        output_shape,
    })
}

/// The call of one layer: `call`, of which everything but the current tokens has been checked, with those of this
/// layer.
pub(crate) fn layer<'a>(
    call: &CheckedCall<'a>,
    num_layer: usize,
    layer_idx: usize,
    current: [&TensorRef<'a>; 2],
) -> Result<CheckedCall<'a>, Error> {
    attributes::layer_idx(layer_idx, num_layer)?;
    let Geometry { batch, num_heads, head_dim, t1, .. } = call.geometry;
    let expected = [call.indices.seqstarts[batch] as usize, num_heads, head_dim];
    for (name, tensor) in CURRENT.into_iter().zip(current) {
        equal_type(name, tensor.element, t1)?;
        shapes::equal(name, &tensor.shape, &expected, "the shape (seqstarts[B], H, Dh) of this call")?;
    }
    let mut extents = call.extents.clone();
    read_current(&mut extents, current)?;
    Ok(CheckedCall {
        geometry: Geometry { layer_idx, ..call.geometry },
        current: current.map(|tensor| tensor.data),
        extents,
        ..*call
    })
}

/// The names of the tensors of current tokens.
pub(crate) const CURRENT: [&str; 2] = ["current_key", "current_value"];

/// Checks the memory of the current tokens.
pub(crate) fn read_current(extents: &mut Extents, current: [&TensorRef<'_>; 2]) -> Result<(), Error> {
    CURRENT.into_iter().zip(current).try_for_each(|(name, tensor)| extents.read(name, tensor.into()))
}

/// The shape of `key` and of `value`, of a size that fits.
pub(crate) fn output_shape(geometry: &Geometry, total_kvlen: usize) -> Result<[usize; 3], Error> {
    let &Geometry { num_heads, num_repeat, head_dim, t1, .. } = geometry;
    let output_heads = num_heads
        .checked_mul(num_repeat)
        .ok_or_else(|| overflow("key", &[total_kvlen, num_heads, num_repeat, head_dim].into()))?;
    let output_shape = [total_kvlen, output_heads, head_dim];
    memory::bytes("key", t1, &output_shape.into())?;
    Ok(output_shape)
}

impl CheckedCall<'_> {
    /// The pointers of a call with these outputs, which are checked here.
    pub(crate) fn pointers(&self, key: &TensorMut<'_>, value: &TensorMut<'_>) -> Result<Pointers, Error> {
        outputs(self.geometry.t1, (&self.output_shape, OUTPUT_SHAPE), self.extents.clone(), [key, value])?;
        let &Self { current, cache, scale, .. } = self;
        Ok(Pointers { current, cache, scale, outputs: [key.data, value.data] })
    }
}

impl<'a> CheckedCall<'a> {
    /// Rows of `current_key` and `current_value`.
    pub(crate) fn tokens(&self) -> usize {
        self.indices.seqstarts[self.geometry.batch] as usize
    }

    /// The call, to store its current tokens: with `num_repeat` 0 it has no outputs.
    pub(crate) fn into_stores(self) -> (Geometry, Indices<'a>, Pointers) {
        let Self { geometry, indices, current, cache, scale, .. } = self;
        let pointers = Pointers { current, cache, scale, outputs: [ptr::null_mut(); 2] };
        (Geometry { num_repeat: 0, ..geometry }, indices, pointers)
    }
}

/// What decides the shape of a call's outputs.
pub(crate) const OUTPUT_SHAPE: &str = "the shape (kvstarts[B], H * num_repeat, Dh) of this call";

/// Checks the outputs of a call of which everything else has been checked: their type, the shape that they must have,
/// with what decides it, and that they share no memory with the call's other tensors.
pub(crate) fn outputs(
    t1: ElementType,
    (output_shape, reason): (&[usize], &'static str),
    mut extents: Extents,
    outputs: [&TensorMut<'_>; 2],
) -> Result<(), Error> {
    for (name, output) in OUTPUTS.into_iter().zip(outputs) {
        equal_type(name, output.element, t1)?;
        shapes::equal(name, &output.shape, output_shape, reason)?;
        extents.write(name, output.into())?;
    }
    Ok(())
}

/// The error of a tensor whose size does not fit in 64 bits.
pub(crate) fn overflow(input: &'static str, shape: &Shape) -> Error {
    Error::SizeOverflow { input, shape: shape.clone() }
}
