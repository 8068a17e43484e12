//! The operator `MultiHeadAttention`.

use kvcache_attention::{AttentionIndices, AttentionPointers, AttentionProblem, Keys};
use kvcache_schema::{AttentionAttributes, ElementType};

use super::attention_call::AttentionCall;
use super::queries_and_mask::{self as checks, Attention};
use crate::backend::{AttentionBackend, Backend};
use crate::config::AttentionConfig;
use crate::error::Error;
use crate::shape_inference::{Dim, infer_attention};
use crate::tensor::TensorRef;
use crate::validate::{AliasCheck, equal_type, indices, shapes};

/// The inputs of `MultiHeadAttention`. Everything is checked when a call is made.
#[derive(Debug, Clone)]
pub struct AttentionInputs<'a> {
    /// The queries, rotary embedding applied. T1, shape (`seqstarts[B]`, Hq, Dh).
    pub query: TensorRef<'a>,
    /// The keys of all tokens, past and current, sequence after sequence. T1, shape (`kvstarts[B]`, Hk, Dh).
    pub key: TensorRef<'a>,
    /// Their values, in the same order. T1, shape (`kvstarts[B]`, Hk, Dh).
    pub value: TensorRef<'a>,
    /// Where each sequence's rows start in `query`, and their total. int64, shape (B + 1).
    pub seqstarts: TensorRef<'a>,
    /// Where each sequence's rows start in `key` and `value`, and their total. int64, shape (B + 1).
    pub kvstarts: TensorRef<'a>,
    /// How many sequences, the first of the batch, get no causal mask. int64, a scalar or of shape (1).
    pub decoding_batches: TensorRef<'a>,
    /// At least the largest number of queries of a sequence. int64, a scalar or of shape (1).
    pub max_seqlen: TensorRef<'a>,
    /// At least the largest number of keys of a sequence. int64, a scalar or of shape (1).
    pub max_kvlen: TensorRef<'a>,
    /// What is added to the scores, if given. T1, shape (`seqstarts[B]`, W) or (Hq, `seqstarts[B]`, W), W at least
    /// `kvstarts[B]`; without elements it counts as absent.
    pub attn_mask: Option<TensorRef<'a>>,
    /// A score of each query head that has no key, if given. T1, shape (Hq); without elements it counts as absent.
    pub head_sink: Option<TensorRef<'a>>,
}

/// The operator `dynamic_batching.MultiHeadAttention` with checked attributes: each sequence's queries attend over its
/// packed keys and values.
///
/// It holds no other state and can be used by several threads at once.
///
/// ```
/// use kvcache_op::{AttentionAttributes, AttentionInputs, MultiHeadAttention, Serial};
/// use ndarray::Array3;
///
/// # fn main() -> Result<(), kvcache_op::Error> {
/// let attributes = AttentionAttributes { num_heads: 8, num_kv_heads: 2, head_dim: 64, ..Default::default() };
/// let op = MultiHeadAttention::new(attributes)?;
/// let query = Array3::<f32>::ones((3, 8, 64)); // a prompt of 2 tokens, and a decoding step after 10 tokens
/// let rows = Array3::<f32>::ones((13, 2, 64));
/// let inputs = AttentionInputs {
///     query: (&query).into(),
///     key: (&rows).into(),
///     value: (&rows).into(),
///     seqstarts: (&[0, 2, 3]).into(),
///     kvstarts: (&[0, 2, 13]).into(),
///     decoding_batches: (&0).into(),
///     max_seqlen: (&2).into(),
///     max_kvlen: (&11).into(),
///     attn_mask: None,
///     head_sink: None,
/// };
/// let output = op.check(&inputs)?.run_alloc::<f32>(&Serial)?;
/// assert_eq!(output.dim(), (3, 8, 64));
/// assert_eq!(output[[2, 7, 63]], 1.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MultiHeadAttention {
    attributes: AttentionAttributes,
    pub(crate) config: AttentionConfig,
    backend: AttentionBackend,
}

impl MultiHeadAttention {
    /// The operator with these attributes.
    ///
    /// # Errors
    /// [`Error::AttributeOutOfRange`], [`Error::FloatOutOfRange`].
    pub fn new(attributes: AttentionAttributes) -> Result<Self, Error> {
        Ok(Self { config: AttentionConfig::new(&attributes)?, attributes, backend: AttentionBackend::default() })
    }

    /// The operator on another kernel.
    #[must_use]
    pub fn with_backend(self, backend: AttentionBackend) -> Self {
        Self { backend, ..self }
    }

    /// The attributes that the operator was made with.
    pub fn attributes(&self) -> &AttentionAttributes {
        &self.attributes
    }

    /// The shape of `attn_output`, as far as it is known before a call; `query` is the shape of `query`.
    pub fn infer_shape(&self, query: Option<&[Dim]>) -> [Dim; 3] {
        infer_attention(&self.config, query)
    }

    /// Checks that the types of the inputs that are neither indices nor the mask go together. A graph executor does so
    /// when it loads a node; the checks of a call do so too.
    ///
    /// # Errors
    /// [`Error::AttentionType`], [`Error::TypeMismatch`].
    pub fn check_types(&self, query: ElementType, key: ElementType, value: ElementType) -> Result<(), Error> {
        checks::t1("query", query)?;
        equal_type("key", key, query)?;
        equal_type("value", value, query)
    }

    /// Checks a call; nothing is written yet.
    ///
    /// # Errors
    /// Every [`Error`] that concerns the inputs.
    pub fn check<'a>(&self, inputs: &AttentionInputs<'a>) -> Result<AttentionCall<'a>, Error> {
        let CheckedInputs { attention: Attention { geometry, attn_mask }, head_sink, aliases } =
            self.check_inputs(inputs, true)?;
        let [seqstarts, kvstarts] = [&inputs.seqstarts, &inputs.kvstarts].map(indices::values);
        let keys = Keys::Packed {
            pointers: [inputs.key.data, inputs.value.data],
            indices: AttentionIndices { seqstarts, kvstarts },
        };
        let pointers = AttentionPointers { query: inputs.query.data, attn_mask, head_sink };
        // SAFETY: types, shapes, indices and alignment have been checked above; each tensor's memory is valid for reads
        // for 'a, as a `TensorRef`.
        let problem = unsafe { AttentionProblem::assume_checked(geometry, keys, pointers) };
        Ok(AttentionCall { backend: self.backend, store: Backend::default(), problem, aliases })
    }

    /// Checks everything but the output; the values of `seqstarts` and `kvstarts` only where they are in memory of the
    /// host.
    pub(crate) fn check_inputs(
        &self,
        inputs: &AttentionInputs<'_>,
        starts_on_host: bool,
    ) -> Result<CheckedInputs, Error> {
        let config = &self.config;
        let t1 = inputs.query.element;
        self.check_types(t1, inputs.key.element, inputs.value.element)?;
        let index_inputs = [
            ("seqstarts", &inputs.seqstarts),
            ("kvstarts", &inputs.kvstarts),
            ("max_seqlen", &inputs.max_seqlen),
            ("max_kvlen", &inputs.max_kvlen),
        ];
        let rows = [("key", &inputs.key), ("value", &inputs.value)];
        index_inputs.into_iter().try_for_each(|(name, tensor)| equal_type(name, tensor.element, ElementType::Int64))?;

        let tokens = checks::query(config, t1, &inputs.query)?;
        let [total_kvlen, ..] = shapes::rank::<3>("key", &inputs.key.shape)?;
        let expected = [total_kvlen, config.num_kv_heads, config.head_dim];
        shapes::equal("key", &inputs.key.shape, &expected, "by num_kv_heads and head_dim")?;
        shapes::equal("value", &inputs.value.shape, &expected, "as in key")?;
        let [starts] = shapes::rank("seqstarts", &inputs.seqstarts.shape)?;
        shapes::equal("seqstarts", &inputs.seqstarts.shape, &[starts.max(1)], "as many as sequences, and the total")?;
        shapes::equal("kvstarts", &inputs.kvstarts.shape, &[starts], "as in seqstarts")?;
        for (name, bound) in [("max_seqlen", &inputs.max_seqlen), ("max_kvlen", &inputs.max_kvlen)] {
            shapes::scalar_or_one_axis(name, &bound.shape)?;
            shapes::equal(name, &bound.shape, &[1][..bound.shape.len()], "a single number")?;
        }

        let mut aliases = AliasCheck::default();
        aliases.read("query", (&inputs.query).into())?;
        for (name, tensor) in rows.into_iter().chain(index_inputs) {
            aliases.read(name, tensor.into())?;
        }

        let batch = starts - 1;
        let decoding_batches = checks::decoding_batches(&inputs.decoding_batches, batch, &mut aliases)?;
        let values = |tensor| if starts_on_host { indices::values(tensor) } else { &[][..] };
        let (seqstarts, kvstarts) = (values(&inputs.seqstarts), values(&inputs.kvstarts));
        for (input, starts, of, expected) in
            [("seqstarts", seqstarts, "query", tokens), ("kvstarts", kvstarts, "key", total_kvlen)]
        {
            if starts_on_host {
                indices::starts(input, starts)?;
                if usize::try_from(starts[batch]) != Ok(expected) {
                    return Err(Error::StartsTotal { input, of, got: starts[batch], expected });
                }
            }
        }
        indices::bound("max_seqlen", indices::values(&inputs.max_seqlen), seqstarts)?;
        indices::bound("max_kvlen", indices::values(&inputs.max_kvlen), kvstarts)?;
        let attn_mask = inputs.attn_mask.as_ref();
        let rows = [tokens, total_kvlen];
        let attention = Attention::check(config, (t1, batch), rows, decoding_batches, attn_mask, &mut aliases)?;
        let head_sink = checks::head_sink(config, t1, inputs.head_sink.as_ref(), &mut aliases)?;
        Ok(CheckedInputs { attention, head_sink, aliases })
    }
}

/// What is known of a call of which everything but the output has been checked.
pub(crate) struct CheckedInputs {
    pub(crate) attention: Attention,
    /// The memory of the sinks, if there are any.
    pub(crate) head_sink: Option<*const u8>,
    /// The memory of every tensor checked so far.
    pub(crate) aliases: AliasCheck,
}
