//! A checked call: the shapes of rank 4 and 6, and the index inputs that follow from them.

use std::marker::PhantomData;

use kvcache_kernels::{Addressing, AlikeSequences, Indices, Problem, Stores, Workers};
use kvcache_schema::{ElementType, StaticCacheDims};
use smallvec::SmallVec;

use crate::backend::Backend;
use crate::config::StaticConfig;
use crate::error::Error;
use crate::operands::Outputs;
use crate::tensor::{TensorMut, TensorRef};
use crate::validate::shapes::{self, Dims};
use crate::validate::{self, CheckedTensors, ExpectedOutputs, equal_type, indices};

/// A call of static batching whose inputs, cache and scale have been checked, and which has written nothing yet.
#[derive(Debug)]
pub struct StaticCall<'a> {
    pub(super) backend: Backend,
    pub(super) checked: CheckedStaticCall,
    pub(super) memory: PhantomData<&'a mut [u8]>,
}

/// What is known of a call of which everything but the outputs has been checked.
#[derive(Debug, Clone)]
pub(crate) struct CheckedStaticCall {
    pub(crate) tensors: CheckedTensors,
    pub(crate) sequences: AlikeSequences,
    /// (B, `start_pos` + S, H * `num_repeat`, Dh).
    pub(crate) output_shape: [usize; 4],
    pub(crate) outputs: ExpectedOutputs,
}

/// Checks everything but the outputs. The types of `current_key`, `current_value`, `cache` and `scale` go together.
pub(super) fn check(
    config: &StaticConfig,
    current: [&TensorRef<'_>; 2],
    start_pos: &TensorRef<'_>,
    cache: &TensorMut<'_>,
    scale: Option<&TensorMut<'_>>,
) -> Result<CheckedStaticCall, Error> {
    // A scale that is given without quantization is left untouched, and may be anything.
    let scale = config.cache.quant.and(scale);
    equal_type("start_pos", start_pos.element, ElementType::Int64)?;

    let StaticDims { dims, seqlen, max_s, stride } = static_shapes(config, current, start_pos, cache, scale)?;
    let (t1, index_inputs) = (current[0].element, [("start_pos", start_pos)]);
    let tensors = validate::tensors(&config.cache, t1, Some(current), &index_inputs, cache, scale, &dims)?;

    let got = indices::values(start_pos)[0];
    let Ok(start_pos) = usize::try_from(got) else {
        return Err(Error::StartPosNegative { b: None, got });
    };
    let Some(kvlen) = start_pos.checked_add(seqlen).filter(|&kvlen| kvlen <= max_s) else {
        return Err(Error::PositionRange { start_pos, seqlen, max_s });
    };
    let reason = "the shape (B, start_pos + S, H * num_repeat, Dh) of this call";
    let outputs = ExpectedOutputs::of_rows(&tensors.geometry, config.cache.num_repeat, &[dims.batch, kvlen], reason)?;
    Ok(CheckedStaticCall {
        tensors,
        sequences: AlikeSequences { seqlen, start_pos, stride },
        output_shape: [dims.batch, kvlen, outputs.heads, dims.head_dim],
        outputs,
    })
}

/// The dimensions of a call, on which all inputs agree.
struct StaticDims {
    /// The dimensions that `KeyValueCache` sees.
    dims: Dims,
    seqlen: usize,
    /// Positions of each sequence in the cache (MaxS).
    max_s: usize,
    /// Slots from a sequence to the next.
    stride: usize,
}

/// Checks ranks, then shapes.
fn static_shapes(
    config: &StaticConfig,
    [key, value]: [&TensorRef<'_>; 2],
    start_pos: &TensorRef<'_>,
    cache: &TensorMut<'_>,
    scale: Option<&TensorMut<'_>>,
) -> Result<StaticDims, Error> {
    let [batch, seqlen, num_heads, head_dim] = shapes::rank("current_key", &key.shape)?;
    shapes::rank::<4>("current_value", &value.shape)?;
    shapes::scalar_or_one_axis("start_pos", &start_pos.shape)?;
    let cache_shape = shapes::rank("cache", &cache.shape)?;
    if let Some(scale) = scale {
        shapes::scale_rank::<6>(&scale.shape, &cache.shape, config.cache.quant)?;
    }

    shapes::equal("current_value", &value.shape, &key.shape, "as in current_key")?;
    shapes::equal("start_pos", &start_pos.shape, &[1][..start_pos.shape.len()], "a single number")?;
    let num_layer = config.cache.num_layer;
    let dims = StaticCacheDims { num_layer, num_heads, inner: head_dim, ..config.layout.dims(cache_shape) };
    let reason = "by cache_layout, num_layer and the shape of current_key";
    shapes::equal("cache", &cache.shape, &config.layout.shape(dims), reason)?;
    let scale_dims = StaticCacheDims { inner: shapes::scales_per_head(&config.cache, head_dim)?, ..dims };
    if let Some(scale) = scale {
        let expected = config.layout.shape(scale_dims);
        shapes::equal("scale", &scale.shape, &expected, "by the shape of cache and quant_group")?;
    }
    let StaticCacheDims { max_b, max_s, .. } = dims;
    if batch > max_b {
        return Err(Error::BatchTooLarge { batch, max_b });
    }
    let strides = config.layout.strides(dims);
    let stride = strides.map_or(0, |strides| strides.sequence);
    Ok(StaticDims {
        dims: Dims {
            batch,
            num_heads,
            head_dim,
            max_t: max_b.saturating_mul(stride),
            max_p: 0,
            cache: strides.map(|strides| strides.slot),
            scale: config.layout.strides(scale_dims).map(|strides| strides.slot),
        },
        seqlen,
        max_s,
        stride,
    })
}

impl<'a> StaticCall<'a> {
    /// The shape of `key` and of `value`: (B, `start_pos` + S, H * `num_repeat`, Dh).
    pub fn output_shape(&self) -> [usize; 4] {
        self.checked.output_shape
    }

    /// Stores the current tokens into the cache, then writes all tokens of all sequences to `outputs`, on the threads
    /// of `workers`.
    ///
    /// # Errors
    /// An [`Error`] that concerns `key` or `value`; nothing has then been written.
    pub fn run(self, outputs: Outputs<'a>, workers: &dyn Workers) -> Result<(), Error> {
        let backend = self.backend;
        self.with_problem(outputs, |problem| backend.kernel().run(problem, workers))
    }

    /// Hands the call with its outputs to `run`, ready for a kernel: for callers that drive one themselves, phase by
    /// phase.
    ///
    /// # Errors
    /// An [`Error`] that concerns `key` or `value`.
    pub fn with_problem<R>(self, outputs: Outputs<'a>, run: impl FnOnce(&mut Problem<'_>) -> R) -> Result<R, Error> {
        let CheckedStaticCall { tensors, sequences, output_shape, outputs: expected } = self.checked;
        let CheckedTensors { mut geometry, pointers, aliases } = tensors;
        if output_shape.contains(&0) {
            geometry.batch = 0; // no tensor has an element that the call touches, and the batch may be any number
        }
        let inputs = StaticIndices::new(geometry.batch, &sequences);
        // SAFETY: types, shapes, alignment and overlap are those of a `CheckedStaticCall`. The index inputs are of
        // sequences of equal length, no longer than the stride between them, so no two share a slot, and of no more
        // sequences than the cache has. Each tensor's memory is valid for 'a, as a slice or by `from_raw_parts`, for
        // reads or writes of its shape, and borrowed so that no other call writes it.
        let stores = unsafe { Stores::assume_checked(geometry, inputs.indices(), pointers) };
        Ok(run(&mut expected.problem(stores, aliases, outputs)?))
    }
}

/// The index inputs of `KeyValueCache` in offset mode for sequences that are alike. Allocates nothing for up to 64 of
/// them.
struct StaticIndices {
    seqstarts: SmallVec<[i64; 65]>,
    kvstarts: SmallVec<[i64; 65]>,
    start_pos: SmallVec<[i64; 64]>,
    cachestarts: SmallVec<[i64; 64]>,
}

impl StaticIndices {
    /// The inputs of `batch` sequences whose tokens, in all, can be counted.
    fn new(batch: usize, &AlikeSequences { seqlen, start_pos, stride }: &AlikeSequences) -> Self {
        let multiples = |len: usize, step: usize| (0..len).map(move |b| (b * step) as i64);
        Self {
            seqstarts: multiples(batch + 1, seqlen).collect(),
            kvstarts: multiples(batch + 1, start_pos + seqlen).collect(),
            start_pos: SmallVec::from_elem(start_pos as i64, batch),
            cachestarts: multiples(batch, stride).collect(),
        }
    }

    fn indices(&self) -> Indices<'_> {
        Indices {
            seqstarts: &self.seqstarts,
            kvstarts: &self.kvstarts,
            start_pos: &self.start_pos,
            addressing: Addressing::Offset { cachestarts: &self.cachestarts },
        }
    }
}
