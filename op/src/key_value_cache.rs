//! The operator `KeyValueCache`: checked attributes, and the ways to make a call.

use kvcache_kernels::{Geometry, Workers};
use kvcache_schema::{Attributes, CacheDims, ElementType, OperatorKind, TypeCombination};
use ndarray::Array3;

use crate::backend::{Backend, Backends};
use crate::checked::{Checked, ExpectedOutputs, Work, key_and_value};
use crate::config::{CacheConfig, Config};
use crate::error::Error;
use crate::layers::{Layers, StepStores};
use crate::operands::{IndexInputs, Inputs, Operands, Outputs, required};
use crate::shape_inference::{self, Dim, InputDims};
use crate::tensor::{Element, TensorMut};
use crate::validate::stores::{CheckedStores, StoreInputs, stores};
use crate::validate::{shapes, types};

/// The operator `dynamic_batching.KeyValueCache` with checked attributes.
///
/// It holds no other state and can be used by several threads at once.
#[derive(Debug, Clone)]
pub struct KeyValueCache {
    attributes: Attributes,
    pub(crate) config: Config,
    pub(crate) backends: Backends,
}

impl KeyValueCache {
    /// The operator with these attributes, on the fast CPU kernel.
    ///
    /// # Errors
    /// [`Error::AttributeOutOfRange`].
    pub fn new(attributes: Attributes) -> Result<Self, Error> {
        Ok(Self { config: Config::new(&attributes)?, attributes, backends: Backends::default() })
    }

    /// The operator on another kernel.
    #[must_use]
    pub fn with_backend(mut self, backend: Backend) -> Self {
        self.backends.cache = backend;
        self
    }

    /// The attributes that the operator was made with.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Checks that the types of the inputs that are not indices go together.
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
        let got = TypeCombination { quant_bit: self.attributes.quant_bit, t1: current_key, t2: cache, t3: scale };
        types(got, self.attributes.quant_type, current_value, &ElementType::T1)
    }

    /// The shapes of `cache` and of `scale` for `max_t` slots (MaxT), `num_heads` cache heads (H) and heads of
    /// `head_dim` elements (Dh). Without quantization the second has no meaning, nor has it with static scales,
    /// whose shape is (L, 2, H), or 1 in place of any of these.
    ///
    /// ```
    /// use kvcache_op::{Attributes, KeyValueCache};
    ///
    /// let attributes = Attributes { num_layer: 2, quant_bit: 8, quant_group: 32, ..Attributes::default() };
    /// let op = KeyValueCache::new(attributes)?;
    /// assert_eq!(op.cache_shapes(1024, 8, 64)?, [[1024, 2, 2, 8, 64], [1024, 2, 2, 8, 2]]);
    /// assert_eq!(op.cache_shapes(1024, 8, 80).unwrap_err().kind(), "head_dim_not_divisible");
    /// # Ok::<(), kvcache_op::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::HeadDimNotDivisible`].
    pub fn cache_shapes(&self, max_t: usize, num_heads: usize, head_dim: usize) -> Result<[[usize; 5]; 2], Error> {
        let &Config { cache: CacheConfig { num_layer, .. }, layout, .. } = &self.config;
        let cache = CacheDims { max_t, num_layer, num_heads, inner: head_dim };
        let scale = CacheDims { inner: shapes::scales_per_head(&self.config.cache, head_dim)?, ..cache };
        Ok([cache, scale].map(|dims| layout.shape(dims)))
    }

    /// The shape of `key` and of `value`, as far as it is known before a call.
    pub fn infer_shape(&self, inputs: &InputDims<'_>) -> [Dim; 3] {
        shape_inference::infer(&self.config, inputs)
    }

    /// Checks a call; nothing is written yet. [`Checked::outputs`] are then known, and [`Checked::run`] does the work.
    ///
    /// # Errors
    /// Every [`Error`] that concerns the inputs, `cache` or `scale`.
    pub fn check<'a>(
        &self,
        inputs: &Inputs<'a>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
    ) -> Result<Checked<'a>, Error> {
        self.check_operands(&mut inputs.clone().operands(cache, scale))
    }

    /// Checks a call of the inputs by position, on the host or on a device.
    pub(crate) fn check_operands<'a>(&self, operands: &mut Operands<'a>) -> Result<Checked<'a>, Error> {
        const KIND: OperatorKind = OperatorKind::KeyValueCache;
        let [key, value, seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen, cache, scale] =
            operands.get(KIND)?;
        let current @ [key, value] = [required("current_key", key)?, required("current_value", value)?];
        let indices = [seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen];
        let inputs = StoreInputs::new(Some(current), indices, [cache, scale], operands.at_most)?;
        let t1 = key.tensor.element;
        if !operands.types_checked {
            let (t2, t3) = inputs.state_types();
            self.check_types(t1, value.tensor.element, t2, t3)?;
            inputs.check_index_types()?;
        }
        let (stores, aliases) = stores(&self.config, t1, inputs)?;
        let outputs = self.outputs(stores.geometry(), stores.rows()[1])?;
        let num_repeat = self.config.cache.num_repeat;
        let work = match stores {
            CheckedStores::Host(stores) => Work::Stores { stores, num_repeat },
            #[cfg(feature = "cuda")]
            CheckedStores::Device(stores) => crate::device::stores(stores, num_repeat, None),
        };
        Ok(Checked::new(self.backends, (work, outputs, aliases), operands.take_guards(KIND)))
    }

    /// Checks what the calls of all layers of one step have in common: indices, cache and scale; `t1` is the type of
    /// each layer's `current_key` and `current_value`. The attribute `layer_idx` is not used; [`Layers::layer`] makes
    /// the call of one layer, and checks what is its own.
    ///
    /// # Errors
    /// Every [`Error`] that concerns the index inputs, `cache` or `scale`. Where `current_key` would decide, `cache`
    /// does.
    pub fn check_layers<'a>(
        &self,
        t1: ElementType,
        indices: &IndexInputs<'a>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
    ) -> Result<Layers<'a>, Error> {
        self.check_types(t1, t1, cache.element(), scale.as_ref().map(TensorMut::element))?;
        let step = StepStores::check(&self.config, t1, indices, cache, scale)?;
        let outputs = self.outputs(step.stores.geometry(), step.stores.total_kvlen())?;
        Ok(Layers { backends: self.backends, step, num_repeat: self.config.cache.num_repeat, outputs })
    }

    fn outputs(&self, geometry: &Geometry, rows: usize) -> Result<ExpectedOutputs, Error> {
        let reason = "the shape (kvstarts[B], H * num_repeat, Dh) of this call";
        key_and_value(geometry, self.config.cache.num_repeat, &[rows], reason)
    }

    /// Stores the current tokens into `cache`, then writes all tokens of all sequences to `outputs`. Allocates nothing
    /// for usual batches.
    ///
    /// # Errors
    /// Any [`Error`]; nothing has then been written.
    pub fn run<'a>(
        &self,
        inputs: &Inputs<'a>,
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
        inputs: &Inputs<'a>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
        workers: &dyn Workers,
    ) -> Result<(Array3<T>, Array3<T>), Error> {
        self.check(inputs, cache, scale)?.run_alloc(workers).map(Into::into)
    }
}
