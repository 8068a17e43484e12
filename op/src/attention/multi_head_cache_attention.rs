//! The operator `MultiHeadCacheAttention`.

use kvcache_attention::{AttentionPointers, AttentionProblem, Keys};
use kvcache_kernels::Geometry;
use kvcache_schema::multi_head_cache_attention::T1;
use kvcache_schema::{CacheAttentionAttributes, CacheDims, ElementType, TypeCombination};

use super::attention_call::AttentionCall;
use super::queries_and_mask::{self as checks, Attention};
use crate::backend::{AttentionBackend, Backend};
use crate::config::{AttentionConfig, Config};
use crate::error::Error;
use crate::operands::{IndexInputs, Inputs};
use crate::shape_inference::{Dim, infer_attention};
use crate::tensor::{TensorMut, TensorRef};
use crate::validate::{self, CheckedStores, equal_type, shapes};

/// The inputs of `MultiHeadCacheAttention` that are only read. Everything is checked when a call is made.
/// A call on a device reads those of type `T` on the device, and takes `kvstarts` as a `K`.
#[derive(Debug, Clone)]
pub struct CacheAttentionInputs<'a, T = TensorRef<'a>, K = TensorRef<'a>> {
    /// The queries, rotary embedding applied. T1, shape (`seqstarts[B]`, Hq, Dh).
    pub query: T,
    /// The inputs of `KeyValueCache`: the current keys and values, and where tokens are.
    pub stored: Inputs<'a, T, K>,
    /// How many sequences, the first of the batch, get no causal mask. int64, a scalar or of shape (1), in memory of the
    /// host.
    pub decoding_batches: TensorRef<'a>,
    /// What is added to the scores, if given. T1, shape (`seqstarts[B]`, W) or (Hq, `seqstarts[B]`, W), W at least
    /// `kvstarts[B]`; without elements it counts as absent.
    pub attn_mask: Option<T>,
    /// A score of each query head that has no key, if given. T1, shape (Hq); without elements it counts as absent.
    pub head_sink: Option<T>,
}

/// The operator `dynamic_batching.MultiHeadCacheAttention` with checked attributes: stores the current keys and values,
/// then each sequence's queries attend over all of its tokens in the cache.
///
/// It holds no other state and can be used by several threads at once.
///
/// ```
/// use kvcache_op::{
///     CacheAttentionAttributes, CacheAttentionInputs, IndexInputs, Inputs, MultiHeadCacheAttention, Serial,
/// };
/// use ndarray::{Array3, Array5};
///
/// # fn main() -> Result<(), kvcache_op::Error> {
/// let mut attributes = CacheAttentionAttributes::default();
/// for (name, value) in [("num_heads", 8), ("num_kv_heads", 2), ("head_dim", 64)] {
///     assert!(attributes.set(name, value));
/// }
/// let op = MultiHeadCacheAttention::new(attributes)?;
/// let mut cache = Array5::<f32>::zeros((1024, 1, 2, 2, 64)); // (MaxT, L, 2, Hk, Dh): cache_layout 0
/// let (query, current) = (Array3::<f32>::ones((3, 8, 64)), Array3::<f32>::ones((3, 2, 64)));
/// let inputs = CacheAttentionInputs {
///     query: (&query).into(),
///     stored: Inputs {
///         current_key: (&current).into(),
///         current_value: (&current).into(),
///         indices: IndexInputs {
///             seqstarts: (&[0, 1, 3]).into(),
///             kvstarts: (&[0, 11, 13]).into(),
///             cachestarts: (&[512, 0]).into(),
///             start_pos: (&[10, 0]).into(),
///             max_seqlen: (&2).into(),
///             max_kvlen: (&11).into(),
///         },
///     },
///     decoding_batches: (&1).into(),
///     attn_mask: None,
///     head_sink: None,
/// };
/// let output = op.check(&inputs, (&mut cache).into(), None)?.run_alloc::<f32>(&Serial)?;
/// assert_eq!(output[[2, 7, 63]], 1.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MultiHeadCacheAttention {
    attributes: CacheAttentionAttributes,
    pub(crate) config: AttentionConfig,
    /// The cache's attributes. Nothing is loaded, so `num_repeat` is not used.
    pub(crate) cache: Config,
    backend: AttentionBackend,
    store: Backend,
}

impl MultiHeadCacheAttention {
    /// The operator with these attributes.
    ///
    /// # Errors
    /// [`Error::AttributeOutOfRange`], [`Error::FloatOutOfRange`].
    pub fn new(attributes: CacheAttentionAttributes) -> Result<Self, Error> {
        Ok(Self {
            config: AttentionConfig::new(&attributes.attention)?,
            cache: Config::new(&attributes.cache)?,
            attributes,
            backend: AttentionBackend::default(),
            store: Backend::default(),
        })
    }

    /// The operator on other kernels: one that attends, one that stores.
    #[must_use]
    pub fn with_backends(self, backend: AttentionBackend, store: Backend) -> Self {
        Self { backend, store, ..self }
    }

    /// The attributes that the operator was made with.
    pub fn attributes(&self) -> &CacheAttentionAttributes {
        &self.attributes
    }

    /// The shape of `attn_output`, as far as it is known before a call; `query` is the shape of `query`.
    pub fn infer_shape(&self, query: Option<&[Dim]>) -> [Dim; 3] {
        infer_attention(&self.config, query)
    }

    /// Checks that the types of the inputs that are neither indices nor the mask go together; the last is that of
    /// `scale`, if it is given. A graph executor does so when it loads a node; the checks of a call do so too.
    ///
    /// # Errors
    /// [`Error::AttentionType`], [`Error::IllegalTypes`], [`Error::ScaleMissing`], [`Error::TypeMismatch`].
    pub fn check_types(
        &self,
        query: ElementType,
        current_key: ElementType,
        current_value: ElementType,
        cache: ElementType,
        scale: Option<ElementType>,
    ) -> Result<(), Error> {
        checks::t1("current_key", current_key)?;
        let (quant_bit, quant_type) = (self.attributes.cache.quant_bit, self.attributes.cache.quant_type);
        let got = TypeCombination { quant_bit, t1: current_key, t2: cache, t3: scale };
        validate::types(got, quant_type, current_value, &T1)?;
        equal_type("query", query, current_key)
    }

    /// Checks a call; nothing is written yet.
    ///
    /// # Errors
    /// Every [`Error`] that concerns the inputs, `cache` or `scale`.
    pub fn check<'a>(
        &self,
        inputs: &CacheAttentionInputs<'a>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
    ) -> Result<AttentionCall<'a>, Error> {
        let CacheAttentionInputs { query, stored, decoding_batches, attn_mask, head_sink } = inputs;
        let Inputs { current_key, current_value, indices } = stored;
        let t3 = scale.as_ref().map(|scale| scale.element);
        self.check_types(query.element, current_key.element, current_value.element, cache.element, t3)?;
        checks::query(&self.config, current_key.element, query)?;
        let current = Some([current_key, current_value]);
        let mut checked = validate::stores(&self.cache, current_key.element, current, indices, &cache, scale.as_ref())?;
        checks::current_heads(&self.config, &current_key.shape, checked.stores.total_seqlen())?;
        let attention = self.attention(&mut checked, decoding_batches, attn_mask.as_ref())?;
        self.step(attention).call(checked, query, head_sink.as_ref())
    }

    /// Checks what the calls of all layers of one step have in common: indices, mask, cache and scale; `t1` is the type
    /// of each layer's tensors. The attribute `layer_idx` is not used; [`AttentionLayers::layer`] makes the call of one
    /// layer, and checks what is its own.
    ///
    /// # Errors
    /// Every [`Error`] that concerns the index inputs, `attn_mask`, `cache` or `scale`.
    pub fn check_layers<'a>(
        &self,
        t1: ElementType,
        indices: &IndexInputs<'a>,
        decoding_batches: &TensorRef<'a>,
        attn_mask: Option<&TensorRef<'a>>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
    ) -> Result<AttentionLayers<'a>, Error> {
        self.check_types(t1, t1, t1, cache.element, scale.as_ref().map(|scale| scale.element))?;
        let mut checked = validate::stores(&self.cache, t1, None, indices, &cache, scale.as_ref())?;
        if let Ok(shape) = cache.shape[..].try_into() {
            let dims = self.cache.layout.dims(shape);
            let dims = CacheDims { num_heads: self.config.num_kv_heads, inner: self.config.head_dim, ..dims };
            let expected = self.cache.layout.shape(dims);
            shapes::equal("cache", &cache.shape, &expected, "by cache_layout, num_kv_heads and head_dim")?;
        }
        let attention = self.attention(&mut checked, decoding_batches, attn_mask)?;
        Ok(AttentionLayers { num_layer: self.cache.cache.num_layer, checked, step: self.step(attention) })
    }

    /// Checks what belongs to the attention of a call or of a step: the mask and `decoding_batches`.
    fn attention(
        &self,
        checked: &mut CheckedStores<'_>,
        decoding_batches: &TensorRef<'_>,
        attn_mask: Option<&TensorRef<'_>>,
    ) -> Result<Attention, Error> {
        let CheckedStores { stores, aliases } = checked;
        let &Geometry { batch, t1, .. } = stores.geometry();
        let decoding_batches = checks::decoding_batches(decoding_batches, batch, aliases)?;
        let rows = [stores.total_seqlen(), stores.total_kvlen()];
        Attention::check(&self.config, (t1, batch), rows, decoding_batches, attn_mask, aliases)
    }

    fn step(&self, attention: Attention) -> AttentionStep {
        AttentionStep { config: self.config, backend: self.backend, store: self.store, attention }
    }
}

/// The attention of one call or of all layers of a step, checked.
#[derive(Debug, Clone, Copy)]
struct AttentionStep {
    config: AttentionConfig,
    backend: AttentionBackend,
    store: Backend,
    attention: Attention,
}

impl AttentionStep {
    /// The call with a `query` whose type, heads and head_dim have been checked.
    fn call<'a>(
        self,
        checked: CheckedStores<'a>,
        query: &TensorRef<'a>,
        head_sink: Option<&TensorRef<'a>>,
    ) -> Result<AttentionCall<'a>, Error> {
        let Self { backend, store, attention: Attention { geometry, attn_mask }, .. } = self;
        let CheckedStores { stores, mut aliases } = checked;
        checks::query_rows(query, stores.total_seqlen(), &mut aliases)?;
        let head_sink = checks::head_sink(&self.config, geometry.t1, head_sink, &mut aliases)?;
        let pointers = AttentionPointers { query: query.data, attn_mask, head_sink };
        // SAFETY: types, shapes, indices and alignment have been checked, here and before; T1, Hk, Dh and B are those of
        // the stores. Query, mask and sinks are valid for reads for 'a, as `TensorRef`s.
        let problem = unsafe { AttentionProblem::assume_checked(geometry, Keys::Cache(stores), pointers) };
        Ok(AttentionCall { backend, store, problem, aliases })
    }
}

/// The calls of all layers of one step: their indices, mask, cache and scale have been checked, and nothing is written
/// yet.
#[derive(Debug)]
pub struct AttentionLayers<'a> {
    num_layer: usize,
    /// The stores of any layer, of which the current tokens are missing.
    checked: CheckedStores<'a>,
    step: AttentionStep,
}

impl AttentionLayers<'_> {
    /// The call of one layer; nothing is written yet. `query` is of type T1 and shape (`seqstarts[B]`, Hq, Dh),
    /// `current_key` and `current_value` are (`seqstarts[B]`, Hk, Dh). Layers can be called in any order, repeatedly,
    /// one at a time.
    ///
    /// # Errors
    /// [`Error::AttributeOutOfRange`] for a layer that the cache does not have, and every [`Error`] that concerns
    /// `query`, `current_key` or `current_value`.
    pub fn layer<'c>(
        &'c mut self,
        layer_idx: usize,
        query: &TensorRef<'c>,
        current_key: &TensorRef<'c>,
        current_value: &TensorRef<'c>,
    ) -> Result<AttentionCall<'c>, Error> {
        self.layer_with_sinks(layer_idx, query, current_key, current_value, None)
    }

    /// The call of one layer, as [`layer`](Self::layer), with the `head_sink` of this layer, of type T1 and shape (Hq).
    ///
    /// # Errors
    /// The errors of [`layer`](Self::layer), and every [`Error`] that concerns `head_sink`.
    pub fn layer_with_sinks<'c>(
        &'c mut self,
        layer_idx: usize,
        query: &TensorRef<'c>,
        current_key: &TensorRef<'c>,
        current_value: &TensorRef<'c>,
        head_sink: Option<&TensorRef<'c>>,
    ) -> Result<AttentionCall<'c>, Error> {
        let checked = self.checked.layer(self.num_layer, layer_idx, [current_key, current_value])?;
        checks::query(&self.step.config, self.step.attention.geometry.t1, query)?;
        self.step.call(checked, query, head_sink)
    }
}
