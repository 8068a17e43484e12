//! The operator `MultiHeadCacheAttention`.

use kvcache_attention::{AttentionPointers, AttentionProblem, Keys};
use kvcache_kernels::Stores;
use kvcache_schema::multi_head_cache_attention::T1;
use kvcache_schema::{CacheAttentionAttributes, CacheDims, ElementType, OperatorKind, TypeCombination};

use super::queries_and_mask::{self as checks, Attention};
use crate::backend::{AttentionBackend, Backend, Backends};
use crate::checked::{Checked, Work};
use crate::config::{AttentionConfig, Config};
use crate::error::Error;
use crate::layers::StepStores;
use crate::operands::{Guards, IndexInputs, Inputs, Operand, Operands, OutputRows, required};
use crate::shape_inference::{Dim, infer_attention};
use crate::tensor::{TensorMut, TensorRef};
use crate::validate::stores::{CheckedStores, StoreInputs, stores};
use crate::validate::{AliasCheck, equal_type, shapes, types};

const KIND: OperatorKind = OperatorKind::MultiHeadCacheAttention;

/// The inputs of `MultiHeadCacheAttention` that are only read. Everything is checked when a call is made.
/// A call on a device reads inputs of type `T` there, and takes `kvstarts` as a `K`.
#[derive(Debug, Clone)]
pub struct CacheAttentionInputs<'a, T = TensorRef<'a>, K = TensorRef<'a>> {
    /// The queries, rotary embedding applied. T1, shape (`seqstarts[B]`, Hq, Dh).
    pub query: T,
    /// The inputs of `KeyValueCache`: the current keys and values, and where tokens are.
    pub stored: Inputs<'a, T, K>,
    /// How many sequences, the first of the batch, get no causal mask. int64, a scalar or of shape (1), in memory of
    /// the host.
    pub decoding_batches: TensorRef<'a>,
    /// What is added to the scores, if given. T1, shape (`seqstarts[B]`, W) or (Hq, `seqstarts[B]`, W), W at least
    /// `kvstarts[B]`; without elements it counts as absent.
    pub attn_mask: Option<T>,
    /// A score of each query head that has no key, if given. T1, shape (Hq); without elements it counts as absent.
    pub head_sink: Option<T>,
}

impl<'a, T: Into<Operand<'a>>, K: Into<OutputRows<'a>>> CacheAttentionInputs<'a, T, K> {
    /// The inputs by position, with `cache` and, where the node has it, `scale`.
    pub fn operands<M: Into<Operand<'a>>>(self, cache: M, scale: Option<M>) -> Operands<'a> {
        let (indices, at_most) = self.stored.indices.operands();
        let [seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen] = indices;
        let rows = [self.query, self.stored.current_key, self.stored.current_value].map(|rows| Some(rows.into()));
        let indices = [seqstarts, kvstarts, cachestarts, start_pos];
        let numbers = [Some(self.decoding_batches.into()), max_seqlen, max_kvlen];
        let state = [Some(cache.into()), scale.map(Into::into)];
        let optional = [self.attn_mask, self.head_sink].map(|tensor| tensor.map(Into::into));
        let all = rows.into_iter().chain(indices).chain(numbers).chain(state).chain(optional);
        Operands { at_most, ..all.collect() }
    }
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
/// let [output]: [Array3<f32>; 1] = op.check(&inputs, (&mut cache).into(), None)?.run_alloc(&Serial)?;
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
    pub(crate) backends: Backends,
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
            backends: Backends::default(),
        })
    }

    /// The operator on other kernels: one that attends, one that stores.
    #[must_use]
    pub fn with_backends(mut self, attention: AttentionBackend, cache: Backend) -> Self {
        self.backends = Backends { attention, cache, ..self.backends };
        self
    }

    /// The attributes that the operator was made with.
    pub fn attributes(&self) -> &CacheAttentionAttributes {
        &self.attributes
    }

    /// The shape of `attn_output`, as far as it is known before a call; `query` is the shape of `query`.
    pub fn infer_shape(&self, query: Option<&[Dim]>) -> [Dim; 3] {
        infer_attention(&self.config, query)
    }

    /// Checks that the types of the inputs that are neither indices nor the mask go together; `scale` is its type,
    /// if it is given. A graph executor does so when it loads a node; the checks of a call do so too.
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
        types(got, quant_type, current_value, &T1)?;
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
    ) -> Result<Checked<'a>, Error> {
        self.check_operands(&mut inputs.clone().operands(cache, scale))
    }

    /// Checks a call of the inputs by position, on the host or on a device.
    pub(crate) fn check_operands<'a>(&self, operands: &mut Operands<'a>) -> Result<Checked<'a>, Error> {
        let [
            query,
            key,
            value,
            seqstarts,
            kvstarts,
            cachestarts,
            start_pos,
            decoding_batches,
            max_seqlen,
            max_kvlen,
            cache,
            scale,
            attn_mask,
            head_sink,
        ] = operands.get(KIND)?;
        let query = &required("query", query)?.tensor;
        let current @ [key, value] = [required("current_key", key)?, required("current_value", value)?];
        let indices = [seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen];
        let inputs = StoreInputs::new(Some(current), indices, [cache, scale], operands.at_most)?;
        let decoding_batches = &required("decoding_batches", decoding_batches)?.tensor;
        let t1 = key.tensor.element;
        if !operands.types_checked {
            let (t2, t3) = inputs.state_types();
            self.check_types(query.element, t1, value.tensor.element, t2, t3)?;
            inputs.check_index_types()?;
        }
        checks::query(&self.config, t1, query)?;
        let (stores, mut aliases) = stores(&self.cache, t1, inputs)?;
        let (rows, batch) = (stores.rows(), stores.geometry().batch);
        checks::current_heads(&self.config, &key.tensor.shape, rows[0])?;
        let attention = self.attention((t1, batch), rows, decoding_batches, attn_mask, &mut aliases)?;
        let sinks = head_sink.map(|sinks| &sinks.tensor);
        let pointers = attention_pointers(&self.config, &attention, rows[0], query, sinks, &mut aliases)?;
        let outputs = attention.outputs(rows);
        let work = match stores {
            CheckedStores::Host(stores) => problem(attention, stores, pointers),
            #[cfg(feature = "cuda")]
            CheckedStores::Device(stores) => {
                let bounds = [&inputs.max_seqlen.tensor, &inputs.max_kvlen.tensor];
                let keys = kvcache_attention::DeviceKeys::Cache(stores);
                crate::device::attention(attention.geometry, pointers, keys, rows[0], bounds)
            }
        };
        Ok(Checked::new(self.backends, (work, outputs, aliases), operands.take_guards(KIND)))
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
        self.check_types(t1, t1, t1, cache.element(), scale.as_ref().map(TensorMut::element))?;
        let shape = &cache.shape().clone();
        let mut step = StepStores::check(&self.cache, t1, indices, cache, scale)?;
        let dims = self.cache.layout.dims(shapes::rank("cache", shape)?);
        let dims = CacheDims { num_heads: self.config.num_kv_heads, inner: self.config.head_dim, ..dims };
        shapes::equal("cache", shape, &self.cache.layout.shape(dims), "by cache_layout, num_kv_heads and head_dim")?;
        let (rows, batch) = ([step.stores.total_seqlen(), step.stores.total_kvlen()], step.stores.geometry().batch);
        let mask = attn_mask.map(|mask| Operand::from(mask.clone()));
        let attention = self.attention((t1, batch), rows, decoding_batches, mask.as_ref(), &mut step.aliases)?;
        Ok(AttentionLayers { config: self.config, backends: self.backends, attention, step })
    }

    /// Checks what belongs to the attention of a call or of a step: the mask and `decoding_batches`.
    fn attention(
        &self,
        (t1, batch): (ElementType, usize),
        rows: [usize; 2],
        decoding_batches: &TensorRef<'_>,
        attn_mask: Option<&Operand<'_>>,
        aliases: &mut AliasCheck,
    ) -> Result<Attention, Error> {
        let decoding_batches = checks::decoding_batches(decoding_batches, batch, aliases)?;
        Attention::check(&self.config, (t1, batch), rows, decoding_batches, attn_mask, aliases)
    }
}

/// The memory of what attends: of a `query` whose type, heads and head_dim have been checked, and of the sinks.
fn attention_pointers(
    config: &AttentionConfig,
    attention: &Attention,
    tokens: usize,
    query: &TensorRef<'_>,
    head_sink: Option<&TensorRef<'_>>,
    aliases: &mut AliasCheck,
) -> Result<AttentionPointers, Error> {
    checks::query_rows(query, tokens, aliases)?;
    let head_sink = checks::head_sink(config, attention.geometry.t1, head_sink, aliases)?;
    Ok(AttentionPointers { query: query.data, attn_mask: attention.attn_mask, head_sink })
}

/// Attention over the cache, after these stores.
fn problem<'a>(attention: Attention, stores: Stores<'a>, pointers: AttentionPointers) -> Work<'a> {
    // SAFETY: types, shapes, indices and alignment have been checked by those who have made these; T1, Hk, Dh and B are
    // the stores' own. Query, mask and sinks are valid for reads for 'a, as `TensorRef`s.
    Work::Attention(unsafe { AttentionProblem::assume_checked(attention.geometry, Keys::Cache(stores), pointers) })
}

/// The calls of all layers of one step: their indices, mask, cache and scale have been checked, and nothing is written
/// yet.
#[derive(Debug)]
pub struct AttentionLayers<'a> {
    config: AttentionConfig,
    backends: Backends,
    attention: Attention,
    step: StepStores<'a>,
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
    ) -> Result<Checked<'c>, Error> {
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
    ) -> Result<Checked<'c>, Error> {
        let Self { config, backends, attention, ref mut step } = *self;
        let (stores, mut aliases) = step.layer(layer_idx, [current_key, current_value])?;
        checks::query(&config, attention.geometry.t1, query)?;
        let rows = [stores.total_seqlen(), stores.total_kvlen()];
        let pointers = attention_pointers(&config, &attention, rows[0], query, head_sink, &mut aliases)?;
        let work = problem(attention, stores, pointers);
        Ok(Checked::new(backends, (work, attention.outputs(rows), aliases), Guards::default()))
    }
}
