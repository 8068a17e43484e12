//! The operator `KeyValueCache` of static batching: checked attributes, and the ways to make a call.

use kvcache_schema::{ElementType, StaticAttributes, TypeCombination};

use super::checked_sequences as checks;
use super::static_call::StaticCall;
use super::static_config::StaticConfig;
use super::static_shape_inference::{self, StaticInputDims};
use crate::backend::Backend;
use crate::error::Error;
use crate::shape_inference::Dim;
use crate::tensor::{TensorMut, TensorRef};
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
        static_shape_inference::infer(&self.config, inputs)
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
        let t3 = scale.as_ref().map(|scale| scale.element);
        self.check_types(current_key.element, current_value.element, cache.element, t3)?;
        let current = [current_key, current_value];
        let checked = checks::tensors(&self.config, current, start_pos, &cache, scale.as_ref())?;
        // SAFETY: `start_pos` is a `TensorRef` of the host, whose type, shape and memory have just been checked.
        let checked = unsafe { checked.at(start_pos) }?;
        Ok(StaticCall::new(self.backend, checked))
    }
}
