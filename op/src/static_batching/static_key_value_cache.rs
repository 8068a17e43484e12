//! The operator `KeyValueCache` of static batching: checked attributes, and the ways to make a call.

use kvcache_kernels::Workers;
use kvcache_schema::{ElementType, OperatorKind, StaticAttributes, StaticAxis, TypeCombination};
use ndarray::Array4;

use super::static_call::{self, CheckedStaticCall};
use crate::backend::{Backend, Backends};
use crate::checked::{Checked, Work, key_and_value};
use crate::config::StaticConfig;
use crate::error::Error;
use crate::operands::{Operand, Operands, Outputs, required};
use crate::shape_inference::{Dim, axis, best_known, repeated};
use crate::tensor::{Element, TensorMut, TensorRef};
use crate::validate::stores::{CheckedTensors, State};
use crate::validate::types;

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
        let (start_pos, state) = (required("start_pos", start_pos)?, State::new([cache, scale])?);
        let (t2, t3) = state.types();
        self.check_types(key.tensor.element, value.tensor.element, t2, t3)?;
        let CheckedStaticCall { tensors, sequences, kvlen } =
            static_call::check(&self.config, current, start_pos, state)?;
        let CheckedTensors { mut geometry, pointers, aliases } = tensors;
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
