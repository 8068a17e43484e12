//! Any operator, chosen at run time: for graph executors and other callers that treat all of them alike.

use kvcache_schema::{ElementType, OperatorAttributes, OperatorKind};

use crate::attention::{MultiHeadAttention, MultiHeadCacheAttention};
use crate::backend::Backends;
use crate::checked::Checked;
use crate::error::Error;
use crate::key_value_cache::KeyValueCache;
use crate::operands::Operands;
use crate::quantized_matmul::{QuantizedGather, QuantizedMatMul};
use crate::shape_inference::{Dim, InputDims};
use crate::static_batching::{StaticInputDims, StaticKeyValueCache};

/// An operator with checked attributes.
///
/// ```
/// use kvcache_op::schema::OperatorKind;
/// use kvcache_op::{ElementType, Operands, Operator, TensorMut, TensorRef};
///
/// # fn main() -> Result<(), kvcache_op::Error> {
/// // What a graph executor does when it loads a node, ...
/// let operator = Operator::new(OperatorKind::StaticKeyValueCache, |attributes| {
///     assert!(attributes.set("num_repeat", 2));
///     Ok::<_, kvcache_op::Error>(())
/// })?;
/// // ... and in each call.
/// let current = ndarray::Array4::<f32>::ones((1, 5, 2, 64));
/// let mut cache = ndarray::Array6::<f32>::zeros((1, 1, 2, 8, 2, 64));
/// let mut operands = Operands::default();
/// for _ in ["current_key", "current_value"] {
///     operands.push(Some(TensorRef::from(&current).into()));
/// }
/// operands.push(Some(TensorRef::from(&0).into()));
/// operands.push(Some(TensorMut::from(&mut cache).into()));
/// let checked = operator.check(operands)?;
/// assert_eq!(checked.outputs().len(), 2);
/// assert_eq!((checked.outputs()[0].name, checked.output_shape()), ("key", &[1, 5, 4, 64][..]));
/// assert_eq!(checked.outputs()[0].element, ElementType::Float32);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the variants are the operators")]
pub enum Operator {
    KeyValueCache(KeyValueCache),
    StaticKeyValueCache(StaticKeyValueCache),
    MultiHeadAttention(MultiHeadAttention),
    MultiHeadCacheAttention(MultiHeadCacheAttention),
    QuantizedMatMul(QuantizedMatMul),
    QuantizedGather(QuantizedGather),
}

/// What is known of an input before a call, by its position; an optional one may be absent.
fn known<T: Copy>(inputs: &[Option<T>], at: usize) -> Option<T> {
    inputs.get(at).copied().flatten()
}

impl Operator {
    /// The operator with the attributes that `set` sets; the others have their defaults.
    ///
    /// # Errors
    /// Those of `set`; [`Error::AttributeOutOfRange`], [`Error::FloatOutOfRange`].
    pub fn new<E: From<Error>>(
        kind: OperatorKind,
        set: impl FnOnce(&mut dyn OperatorAttributes) -> Result<(), E>,
    ) -> Result<Self, E> {
        fn given<A: OperatorAttributes + Default, E>(
            set: impl FnOnce(&mut dyn OperatorAttributes) -> Result<(), E>,
        ) -> Result<A, E> {
            let mut attributes = A::default();
            set(&mut attributes)?;
            Ok(attributes)
        }
        Ok(match kind {
            OperatorKind::KeyValueCache => Self::KeyValueCache(KeyValueCache::new(given(set)?)?),
            OperatorKind::StaticKeyValueCache => Self::StaticKeyValueCache(StaticKeyValueCache::new(given(set)?)?),
            OperatorKind::MultiHeadAttention => Self::MultiHeadAttention(MultiHeadAttention::new(given(set)?)?),
            OperatorKind::MultiHeadCacheAttention => {
                Self::MultiHeadCacheAttention(MultiHeadCacheAttention::new(given(set)?)?)
            }
            OperatorKind::QuantizedMatMul => Self::QuantizedMatMul(QuantizedMatMul::new(given(set)?)?),
            OperatorKind::QuantizedGather => Self::QuantizedGather(QuantizedGather::new(given(set)?)?),
        })
    }

    /// The operator on other kernels.
    #[must_use]
    pub fn with_backends(mut self, backends: Backends) -> Self {
        *match &mut self {
            Self::KeyValueCache(op) => &mut op.backends,
            Self::StaticKeyValueCache(op) => &mut op.backends,
            Self::MultiHeadAttention(op) => &mut op.backends,
            Self::MultiHeadCacheAttention(op) => &mut op.backends,
            Self::QuantizedMatMul(op) => &mut op.backends,
            Self::QuantizedGather(op) => &mut op.backends,
        } = backends;
        self
    }

    /// Checks that the types of the inputs go together, by position. Types of indices and masks are not looked
    /// at; the quantized operators have the same types in every node.
    ///
    /// # Errors
    /// [`Error::InputMissing`], and the errors of the operator's own `check_types`.
    pub fn check_types(&self, types: &[Option<ElementType>]) -> Result<(), Error> {
        let kind = self.kind();
        let of = |at: usize| known(types, at).ok_or(Error::InputMissing { input: kind.inputs()[at] });
        match self {
            Self::KeyValueCache(op) => op.check_types(of(0)?, of(1)?, of(8)?, known(types, 9)),
            Self::StaticKeyValueCache(op) => op.check_types(of(0)?, of(1)?, of(3)?, known(types, 4)),
            Self::MultiHeadAttention(op) => op.check_types(of(0)?, of(1)?, of(2)?),
            Self::MultiHeadCacheAttention(op) => op.check_types(of(0)?, of(1)?, of(2)?, of(10)?, known(types, 11)),
            Self::QuantizedMatMul(_) | Self::QuantizedGather(_) => Ok(()),
        }
    }

    /// The shape of the outputs that are not optional, by the shapes of the inputs, as far as a graph knows them:
    /// `None` where a rank is unknown.
    pub fn infer_shape(&self, shapes: &[Option<&[Dim]>]) -> Option<Vec<Dim>> {
        let of = |at: usize| known(shapes, at);
        let [current_key, current_value] = [of(0), of(1)];
        Some(match self {
            Self::KeyValueCache(op) => {
                op.infer_shape(&InputDims { current_key, current_value, cache: of(8), total_kvlen: None }).into()
            }
            Self::StaticKeyValueCache(op) => {
                op.infer_shape(&StaticInputDims { current_key, current_value, cache: of(3), start_pos: None }).into()
            }
            Self::MultiHeadAttention(op) => op.infer_shape(of(0)).into(),
            Self::MultiHeadCacheAttention(op) => op.infer_shape(of(0)).into(),
            Self::QuantizedMatMul(op) => op.infer_shape(of(0))?,
            Self::QuantizedGather(op) => op.infer_shape(of(0))?,
        })
    }

    /// Checks a call, on the host or on the device that its first input is on; nothing is written yet.
    ///
    /// # Errors
    /// Every [`Error`] that concerns the inputs.
    pub fn check<'a>(&self, mut operands: Operands<'a>) -> Result<Checked<'a>, Error> {
        match self {
            Self::KeyValueCache(op) => op.check_operands(&mut operands),
            Self::StaticKeyValueCache(op) => op.check_operands(&mut operands),
            Self::MultiHeadAttention(op) => op.check_operands(&mut operands),
            Self::MultiHeadCacheAttention(op) => op.check_operands(&mut operands),
            Self::QuantizedMatMul(op) => op.check_operands(&mut operands),
            Self::QuantizedGather(op) => op.check_operands(&mut operands),
        }
    }

    /// Loads the kernels for these types, by position, into the stream's context:
    /// [`KeyValueCache::prepare_device`]. The quantized operators have none.
    ///
    /// # Errors
    /// Those of [`check_types`](Self::check_types); what concerns the machine or its driver; heads that are too long.
    #[cfg(feature = "cuda")]
    pub fn prepare_device(
        &self,
        types: &[Option<ElementType>],
        stream: &crate::cuda::cudarc::driver::CudaStream,
    ) -> Result<(), crate::cuda::Error> {
        self.check_types(types)?;
        let of = |at: usize| known(types, at).ok_or(Error::InputMissing { input: self.kind().inputs()[at] });
        match self {
            Self::KeyValueCache(op) => op.prepare_device(of(0)?, of(8)?, known(types, 9), stream),
            Self::StaticKeyValueCache(op) => op.prepare_device(of(0)?, of(3)?, known(types, 4), stream),
            Self::MultiHeadAttention(op) => op.prepare_device(of(0)?, stream),
            Self::MultiHeadCacheAttention(op) => op.prepare_device(of(0)?, of(10)?, known(types, 11), stream),
            Self::QuantizedMatMul(_) | Self::QuantizedGather(_) => Ok(()),
        }
    }

    /// Which operator it is.
    pub const fn kind(&self) -> OperatorKind {
        match self {
            Self::KeyValueCache(_) => OperatorKind::KeyValueCache,
            Self::StaticKeyValueCache(_) => OperatorKind::StaticKeyValueCache,
            Self::MultiHeadAttention(_) => OperatorKind::MultiHeadAttention,
            Self::MultiHeadCacheAttention(_) => OperatorKind::MultiHeadCacheAttention,
            Self::QuantizedMatMul(_) => OperatorKind::QuantizedMatMul,
            Self::QuantizedGather(_) => OperatorKind::QuantizedGather,
        }
    }
}
