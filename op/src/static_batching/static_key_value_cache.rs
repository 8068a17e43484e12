//! The operator `KeyValueCache` of static batching: checked attributes, and the ways to make a call.

use std::marker::PhantomData;

use kvcache_kernels::Workers;
use kvcache_schema::{ElementType, StaticAttributes, StaticAxis, TypeCombination};
use ndarray::Array4;

use super::static_call::{self, CheckedStaticCall, StaticCall};
use crate::backend::Backend;
use crate::config::StaticConfig;
use crate::error::Error;
use crate::operands::{self, Outputs};
use crate::shape_inference::{Dim, axis, best_known, repeated};
use crate::tensor::{Element, TensorMut, TensorRef};
use crate::validate;

/// The inputs of a call of static batching that are only read. Everything is checked when a call is made. A call on a
/// device reads those of type `T` on the device.
#[derive(Debug, Clone)]
pub struct StaticInputs<'a, T = TensorRef<'a>> {
    /// T1, shape (B, S, H, Dh).
    pub current_key: T,
    /// T1, shape (B, S, H, Dh).
    pub current_value: T,
    /// int64, a scalar or of shape (1), in memory of the host: the position of every sequence's first current token.
    pub start_pos: TensorRef<'a>,
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
    backend: Backend,
}

impl StaticKeyValueCache {
    /// The operator with these attributes, on the fast CPU kernel.
    ///
    /// # Errors
    /// [`Error::AttributeOutOfRange`].
    pub fn new(attributes: StaticAttributes) -> Result<Self, Error> {
        Ok(Self { config: StaticConfig::new(&attributes)?, attributes, backend: Backend::default() })
    }

    /// The operator on another kernel.
    #[must_use]
    pub fn with_backend(self, backend: Backend) -> Self {
        Self { backend, ..self }
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
        validate::types(got, self.attributes.quant_type, current_value, &ElementType::T1)
    }

    /// The shape of `key` and of `value`, as far as it is known before a call.
    pub fn infer_shape(&self, inputs: &StaticInputDims<'_>) -> [Dim; 4] {
        infer_shape(&self.config, inputs)
    }

    /// Checks a call; nothing is written yet. [`StaticCall::output_shape`] is then known, and [`StaticCall::run`] does
    /// the work.
    ///
    /// # Errors
    /// Every [`Error`] that concerns the inputs, `cache` or `scale`.
    pub fn check<'a>(
        &self,
        inputs: &StaticInputs<'a>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
    ) -> Result<StaticCall<'a>, Error> {
        let StaticInputs { current_key, current_value, start_pos } = inputs;
        let checked = self.check_tensors([current_key, current_value], start_pos, &cache, scale.as_ref())?;
        Ok(StaticCall { backend: self.backend, checked, memory: PhantomData })
    }

    /// Checks everything but the outputs. `start_pos` is the one value that is read.
    pub(crate) fn check_tensors(
        &self,
        current: [&TensorRef<'_>; 2],
        start_pos: &TensorRef<'_>,
        cache: &TensorMut<'_>,
        scale: Option<&TensorMut<'_>>,
    ) -> Result<CheckedStaticCall, Error> {
        let [t1, current_value] = current.map(|tensor| tensor.element);
        self.check_types(t1, current_value, cache.element, scale.map(|scale| scale.element))?;
        static_call::check(&self.config, current, start_pos, cache, scale)
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
        outputs: Outputs<'a>,
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
        let call = self.check(inputs, cache, scale)?;
        operands::run_alloc(call.output_shape(), |outputs| call.run(outputs, workers)).map(Into::into)
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
        // Without a past, the length is that of the current tokens.
        (seqlen, Some(0)) => seqlen,
        _ => Dim::Unknown,
    };
    let head_axis = config.layout.axes().into_iter().position(|axis| axis == StaticAxis::Head).unwrap_or_default();
    [best_known(current(0)), kvlen, repeated(with_cache(2, head_axis), config.cache.num_repeat), with_cache(3, 5)]
}
