//! The operator `KeyValueCache` of static batching, whose sequences are alike: all of a batch have the same length and
//! the same position.
//!
//! A front-end: it checks the shapes of rank 4 and 6, and makes the index inputs of `KeyValueCache`, which does the
//! work.

use kvcache_kernels::{Addressing, AlikeSequences, Geometry, Indices, Workers};
use kvcache_schema::{ElementType, OperatorKind, StaticAttributes, StaticAxis, StaticCacheDims, TypeCombination};
use ndarray::Array4;
use smallvec::SmallVec;

use crate::backend::{Backend, Backends};
use crate::checked::{Checked, Work, key_and_value};
use crate::config::StaticConfig;
use crate::error::Error;
use crate::operands::{Operand, Operands, Outputs, required};
use crate::shape_inference::{Dim, axis, best_known, repeated};
use crate::tensor::{Element, TensorMut, TensorRef};
use crate::validate::stores::memory;
use crate::validate::{equal_type, indices, shapes, types};

/// The inputs of a call of static batching that are only read. Everything is checked when a call is made. A call on a
/// device reads inputs of type `T` there.
#[derive(Debug, Clone)]
pub struct StaticInputs<'a, T = TensorRef<'a>> {
    /// T1, shape (B, S, H, Dh).
    pub current_key: T,
    /// T1, shape (B, S, H, Dh).
    pub current_value: T,
    /// int64, a scalar or of shape (1), in memory of the host: the position of every sequence's first current token.
    pub start_pos: TensorRef<'a>,
}

impl<'a, T: Into<Operand<'a>>> StaticInputs<'a, T> {
    /// The inputs by position, with `cache` and, where the node has it, `scale`.
    pub fn operands<M: Into<Operand<'a>>>(self, cache: M, scale: Option<M>) -> Operands<'a> {
        let current = [self.current_key, self.current_value].map(|current| Some(current.into()));
        let rest = [Some(self.start_pos.into()), Some(cache.into()), scale.map(Into::into)];
        current.into_iter().chain(rest).collect()
    }
}

/// The operator `KeyValueCache` of static batching with checked attributes.
///
/// It holds no other state and can be used by several threads at once.
///
/// ```
/// use kvcache_op::{Serial, StaticAttributes, StaticInputs, StaticKeyValueCache};
/// use ndarray::{Array4, Array6};
///
/// # fn main() -> Result<(), kvcache_op::Error> {
/// let op = StaticKeyValueCache::new(StaticAttributes { num_repeat: 4, ..StaticAttributes::default() })?;
/// let mut cache = Array6::<f32>::zeros((8, 1, 2, 1024, 2, 64)); // (MaxB, L, 2, MaxS, H, Dh): cache_layout 0
/// let current = Array4::<f32>::ones((3, 5, 2, 64)); // three sequences of 5 tokens
/// let inputs =
///     StaticInputs { current_key: (&current).into(), current_value: (&current).into(), start_pos: (&7).into() };
/// let (key, _value) = op.run_alloc::<f32>(&inputs, (&mut cache).into(), None, &Serial)?;
/// assert_eq!(key.dim(), (3, 12, 8, 64));
/// assert_eq!((key[[2, 6, 7, 63]], key[[2, 7, 7, 63]]), (0.0, 1.0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct StaticKeyValueCache {
    attributes: StaticAttributes,
    pub(crate) config: StaticConfig,
    pub(crate) backends: Backends,
}

impl StaticKeyValueCache {
    /// The operator with these attributes, on the fast CPU kernel.
    ///
    /// # Errors
    /// [`Error::AttributeOutOfRange`].
    pub fn new(attributes: StaticAttributes) -> Result<Self, Error> {
        Ok(Self { config: StaticConfig::new(&attributes)?, attributes, backends: Backends::default() })
    }

    /// The operator on another kernel.
    #[must_use]
    pub fn with_backend(mut self, backend: Backend) -> Self {
        self.backends.cache = backend;
        self
    }

    /// The attributes that the operator was made with.
    pub fn attributes(&self) -> &StaticAttributes {
        &self.attributes
    }

    /// Checks that the types of `current_key`, `current_value`, `cache` and `scale` go together.
    ///
    /// # Errors
    /// [`Error::IllegalTypes`], [`Error::ScaleMissing`], [`Error::TypeMismatch`].
    pub fn check_types(
        &self,
        current_key: ElementType,
        current_value: ElementType,
        cache: ElementType,
        scale: Option<ElementType>,
    ) -> Result<(), Error> {
        let quant_bit = self.attributes.quant_bit;
        let got = TypeCombination { quant_bit, t1: current_key, t2: cache, t3: scale };
        types(got, self.attributes.quant_type, current_value, &ElementType::T1)
    }

    /// The shape of `key` and of `value`, as far as it is known before a call.
    pub fn infer_shape(&self, inputs: &StaticInputDims<'_>) -> [Dim; 4] {
        infer_shape(&self.config, inputs)
    }

    /// Checks a call; nothing is written yet. [`Checked::outputs`] are then known, and [`Checked::run`] does the work.
    ///
    /// # Errors
    /// Every [`Error`] that concerns the inputs, `cache` or `scale`.
    pub fn check<'a>(
        &self,
        inputs: &StaticInputs<'a>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
    ) -> Result<Checked<'a>, Error> {
        self.check_operands(&mut inputs.clone().operands(cache, scale))
    }

    /// Checks a call of the inputs by position, on the host or on a device. `start_pos` is the one value that is read.
    pub(crate) fn check_operands<'a>(&self, operands: &mut Operands<'a>) -> Result<Checked<'a>, Error> {
        const KIND: OperatorKind = OperatorKind::StaticKeyValueCache;
        let [key, value, start_pos, cache, scale] = operands.get(KIND)?;
        let current @ [key, value] = [required("current_key", key)?, required("current_value", value)?];
        let (start_pos, cache) = (required("start_pos", start_pos)?, required("cache", cache)?);
        if !operands.types_checked {
            let t3 = scale.map(|scale| scale.tensor.element);
            self.check_types(key.tensor.element, value.tensor.element, cache.tensor.element, t3)?;
            equal_type("start_pos", start_pos.tensor.element, ElementType::Int64)?;
        }
        // A scale that is given without quantization is left untouched, and may be anything.
        let state = (cache, self.config.cache.quant.and(scale));
        let (mut geometry, [seqlen, max_s, stride]) = check_shapes(&self.config, current, start_pos, state)?;
        let indices = [("start_pos", start_pos)].into_iter();
        let (pointers, aliases) = memory(&self.config.cache, Some(current), indices, state)?;
        let got = indices::values(&start_pos.tensor)[0];
        let Ok(start_pos) = usize::try_from(got) else {
            return Err(Error::StartPosNegative { b: None, got });
        };
        let Some(kvlen) = start_pos.checked_add(seqlen).filter(|&kvlen| kvlen <= max_s) else {
            return Err(Error::PositionRange { start_pos, seqlen, max_s });
        };
        let sequences = AlikeSequences { seqlen, start_pos, stride };
        let num_repeat = self.config.cache.num_repeat;
        let reason = "the shape (B, start_pos + S, H * num_repeat, Dh) of this call";
        let outputs = key_and_value(&geometry, num_repeat, &[geometry.batch, kvlen], reason)?;
        #[cfg(feature = "cuda")]
        if operands.is_on_device() {
            let work = crate::device::alike_stores(geometry, pointers, sequences, num_repeat);
            return Ok(Checked::new(self.backends, (work, outputs, aliases), operands.take_guards(KIND)));
        }
        if outputs[0].shape.contains(&0) {
            geometry.batch = 0; // no tensor has an element that the call touches, and the batch may be any number
        }
        let work = Work::Static { geometry, pointers, sequences, num_repeat };
        Ok(Checked::new(self.backends, (work, outputs, aliases), operands.take_guards(KIND)))
    }

    /// Stores the current tokens into `cache`, then writes all tokens of all sequences to `outputs`. Allocates nothing
    /// for usual batches.
    ///
    /// # Errors
    /// Any [`Error`]; nothing has then been written.
    pub fn run<'a>(
        &self,
        inputs: &StaticInputs<'a>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
        outputs: Outputs<TensorMut<'a>>,
        workers: &dyn Workers,
    ) -> Result<(), Error> {
        self.check(inputs, cache, scale)?.run(outputs, workers)
    }

    /// Runs the operator with outputs allocated here: `key` and `value`, of the type of `current_key`.
    ///
    /// # Errors
    /// Any [`Error`]; nothing has then been written.
    pub fn run_alloc<'a, T: Element>(
        &self,
        inputs: &StaticInputs<'a>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
        workers: &dyn Workers,
    ) -> Result<(Array4<T>, Array4<T>), Error> {
        self.check(inputs, cache, scale)?.run_alloc(workers).map(Into::into)
    }
}

/// Checks ranks, then shapes. Gives the call's geometry, the current tokens of each sequence (S), the positions of each
/// in the cache (MaxS), and the slots from one sequence to the next.
fn check_shapes(
    config: &StaticConfig,
    current: [&Operand<'_>; 2],
    start_pos: &Operand<'_>,
    state: (&Operand<'_>, Option<&Operand<'_>>),
) -> Result<(Geometry, [usize; 3]), Error> {
    let [key, value] = current.map(|operand| &operand.tensor.shape);
    let start_pos = &start_pos.tensor.shape;
    let (cache, scale) = (&state.0.tensor.shape, state.1.map(|scale| &scale.tensor.shape));
    let [batch, seqlen, num_heads, head_dim] = shapes::rank("current_key", key)?;
    shapes::rank::<4>("current_value", value)?;
    shapes::scalar_or_one_axis("start_pos", start_pos)?;
    let cache_shape = shapes::rank("cache", cache)?;
    if let Some(scale) = scale {
        shapes::scale_rank::<6>(scale, cache, config.cache.quant)?;
    }

    shapes::equal("current_value", value, key, "as in current_key")?;
    shapes::equal("start_pos", start_pos, &[1][..start_pos.len()], "a single number")?;
    let num_layer = config.cache.num_layer;
    let dims = StaticCacheDims { num_layer, num_heads, inner: head_dim, ..config.layout.dims(cache_shape) };
    let reason = "by cache_layout, num_layer and the shape of current_key";
    shapes::equal("cache", cache, &config.layout.shape(dims), reason)?;
    let scale_dims = StaticCacheDims { inner: shapes::scales_per_head(&config.cache, head_dim)?, ..dims };
    if let Some(scale) = scale {
        let expected = config.layout.shape(scale_dims);
        shapes::equal("scale", scale, &expected, "by the shape of cache and quant_group")?;
    }
    let StaticCacheDims { max_b, max_s, .. } = dims;
    if batch > max_b {
        return Err(Error::BatchTooLarge { batch, max_b });
    }
    let strides = config.layout.strides(dims);
    let stride = strides.map_or(0, |strides| strides.sequence);
    let strides = [strides, config.layout.strides(scale_dims)].map(|strides| strides.map(|strides| strides.slot));
    let t1 = current[0].tensor.element;
    let geometry = shapes::geometry(&config.cache, t1, [batch, num_heads, head_dim], state, strides)?;
    Ok((geometry, [seqlen, max_s, stride]))
}

/// The index inputs of `KeyValueCache` in offset mode for sequences that are alike. Allocates nothing for up to 64 of
/// them.
pub(crate) struct StaticIndices {
    seqstarts: SmallVec<[i64; 65]>,
    kvstarts: SmallVec<[i64; 65]>,
    start_pos: SmallVec<[i64; 64]>,
    cachestarts: SmallVec<[i64; 64]>,
}

impl StaticIndices {
    /// The inputs of `batch` sequences whose tokens, in all, can be counted.
    pub(crate) fn new(batch: usize, &AlikeSequences { seqlen, start_pos, stride }: &AlikeSequences) -> Self {
        let multiples = |len: usize, step: usize| (0..len).map(move |b| (b * step) as i64);
        Self {
            seqstarts: multiples(batch + 1, seqlen).collect(),
            kvstarts: multiples(batch + 1, start_pos + seqlen).collect(),
            start_pos: SmallVec::from_elem(start_pos as i64, batch),
            cachestarts: multiples(batch, stride).collect(),
        }
    }

    pub(crate) fn indices(&self) -> Indices<'_> {
        Indices {
            seqstarts: &self.seqstarts,
            kvstarts: &self.kvstarts,
            start_pos: &self.start_pos,
            addressing: Addressing::Offset { cachestarts: &self.cachestarts },
        }
    }
}

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
fn infer_shape(config: &StaticConfig, inputs: &StaticInputDims<'_>) -> [Dim; 4] {
    let current = |of: usize| [axis(inputs.current_key, 4, of), axis(inputs.current_value, 4, of)];
    let with_cache =
        |of: usize, in_cache: usize| best_known(current(of).into_iter().chain([axis(inputs.cache, 6, in_cache)]));
    let kvlen = match (best_known(current(1)), inputs.start_pos) {
        (Dim::Known(seqlen), Some(start_pos)) => start_pos.checked_add(seqlen).map_or(Dim::Unknown, Dim::Known),
        // Without a past, there are the current tokens alone.
        (seqlen, Some(0)) => seqlen,
        _ => Dim::Unknown,
    };
    let head_axis = config.layout.axes().into_iter().position(|axis| axis == StaticAxis::Head).unwrap_or_default();
    [best_known(current(0)), kvlen, repeated(with_cache(2, head_axis), config.cache.num_repeat), with_cache(3, 5)]
}
