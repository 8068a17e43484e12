//! The operator `MultiHeadAttention`.

use kvcache_attention::{AttentionIndices, AttentionPointers, AttentionProblem, Keys};
use kvcache_schema::{AttentionAttributes, ElementType, OperatorKind};

use super::queries_and_mask::{self as checks, Attention};
use crate::backend::{AttentionBackend, Backends};
use crate::checked::{Checked, Work};
use crate::config::AttentionConfig;
use crate::error::Error;
use crate::operands::{Operand, Operands, required};
use crate::shape_inference::{Dim, infer_attention};
use crate::tensor::TensorRef;
use crate::validate::{AliasCheck, equal_type, indices, shapes};

/// The inputs of `MultiHeadAttention`. Everything is checked when a call is made. A call on a device reads inputs
/// of type `T` there.
#[derive(Debug, Clone)]
pub struct AttentionInputs<'a, T = TensorRef<'a>> {
    /// The queries, rotary embedding applied. T1, shape (`seqstarts[B]`, Hq, Dh).
    pub query: T,
    /// The keys of all tokens, past and current, sequence after sequence. T1, shape (`kvstarts[B]`, Hk, Dh).
    pub key: T,
    /// Their values, in the same order. T1, shape (`kvstarts[B]`, Hk, Dh).
    pub value: T,
    /// Where each sequence's rows start in `query`, and their total. int64, shape (B + 1).
    pub seqstarts: T,
    /// Where each sequence's rows start in `key` and `value`, and their total. int64, shape (B + 1).
    pub kvstarts: T,
    /// How many sequences, the first of the batch, get no causal mask. int64, a scalar or of shape (1).
    pub decoding_batches: TensorRef<'a>,
    /// At least the largest number of queries of a sequence. int64, a scalar or of shape (1).
    pub max_seqlen: TensorRef<'a>,
    /// At least the largest number of keys of a sequence. int64, a scalar or of shape (1).
    pub max_kvlen: TensorRef<'a>,
    /// What is added to the scores, if given. T1, shape (`seqstarts[B]`, W) or (Hq, `seqstarts[B]`, W), W at least
    /// `kvstarts[B]`; without elements it counts as absent.
    pub attn_mask: Option<T>,
    /// A score of each query head that has no key, if given. T1, shape (Hq); without elements it counts as absent.
    pub head_sink: Option<T>,
}

impl<'a, T: Into<Operand<'a>>> AttentionInputs<'a, T> {
    /// The inputs by position.
    pub fn operands(self) -> Operands<'a> {
        let tensors = [self.query, self.key, self.value, self.seqstarts, self.kvstarts];
        let numbers = [self.decoding_batches, self.max_seqlen, self.max_kvlen];
        let tensors = tensors.into_iter().map(|tensor| Some(tensor.into()));
        let numbers = numbers.into_iter().map(|number| Some(number.into()));
        let optional = [self.attn_mask, self.head_sink].into_iter().map(|tensor| tensor.map(Into::into));
        tensors.chain(numbers).chain(optional).collect()
    }
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
/// let [output]: [Array3<f32>; 1] = op.check(&inputs)?.run_alloc(&Serial)?;
/// assert_eq!(output.dim(), (3, 8, 64));
/// assert_eq!(output[[2, 7, 63]], 1.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MultiHeadAttention {
    attributes: AttentionAttributes,
    pub(crate) config: AttentionConfig,
    pub(crate) backends: Backends,
}

impl MultiHeadAttention {
    /// The operator with these attributes.
    ///
    /// # Errors
    /// [`Error::AttributeOutOfRange`], [`Error::FloatOutOfRange`].
    pub fn new(attributes: AttentionAttributes) -> Result<Self, Error> {
        Ok(Self { config: AttentionConfig::new(&attributes)?, attributes, backends: Backends::default() })
    }

    /// The operator on another kernel.
    #[must_use]
    pub fn with_backend(mut self, backend: AttentionBackend) -> Self {
        self.backends.attention = backend;
        self
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
    pub fn check<'a>(&self, inputs: &AttentionInputs<'a>) -> Result<Checked<'a>, Error> {
        self.check_operands(&mut inputs.clone().operands())
    }

    /// Checks a call of the inputs by position; the values of `seqstarts` and `kvstarts` only if they are on the host.
    pub(crate) fn check_operands<'a>(&self, operands: &mut Operands<'a>) -> Result<Checked<'a>, Error> {
        const KIND: OperatorKind = OperatorKind::MultiHeadAttention;
        let names = KIND.inputs();
        let inputs: [Option<&Operand<'a>>; 10] = operands.get(KIND)?;
        let tensor = |at: usize| required(names[at], inputs[at]).map(|operand| &operand.tensor);
        let [query, key, value] = [tensor(0)?, tensor(1)?, tensor(2)?];
        let [seqstarts, kvstarts, decoding_batches] = [tensor(3)?, tensor(4)?, tensor(5)?];
        let bounds @ [max_seqlen, max_kvlen] = [tensor(6)?, tensor(7)?];
        let config = &self.config;
        let t1 = query.element;
        let index_inputs =
            [("seqstarts", seqstarts), ("kvstarts", kvstarts), ("max_seqlen", max_seqlen), ("max_kvlen", max_kvlen)];
        if !operands.types_checked {
            self.check_types(t1, key.element, value.element)?;
            let equal = |(name, tensor): (_, &TensorRef<'_>)| equal_type(name, tensor.element, ElementType::Int64);
            index_inputs.into_iter().try_for_each(equal)?;
        }

        let tokens = checks::query(config, t1, query)?;
        let [total_kvlen, ..] = shapes::rank::<3>("key", &key.shape)?;
        let expected = [total_kvlen, config.num_kv_heads, config.head_dim];
        shapes::equal("key", &key.shape, &expected, "by num_kv_heads and head_dim")?;
        shapes::equal("value", &value.shape, &expected, "as in key")?;
        let [starts] = shapes::rank("seqstarts", &seqstarts.shape)?;
        shapes::equal("seqstarts", &seqstarts.shape, &[starts.max(1)], "as many as sequences, and the total")?;
        shapes::equal("kvstarts", &kvstarts.shape, &[starts], "as in seqstarts")?;
        for (name, bound) in names[6..].iter().zip(bounds) {
            shapes::scalar_or_one_axis(name, &bound.shape)?;
            shapes::equal(name, &bound.shape, &[1][..bound.shape.len()], "a single number")?;
        }

        let mut aliases = AliasCheck::default();
        for (name, tensor) in [("query", query), ("key", key), ("value", value)].into_iter().chain(index_inputs) {
            aliases.read(name, tensor)?;
        }

        let batch = starts - 1;
        let decoding_batches = checks::decoding_batches(decoding_batches, batch, &mut aliases)?;
        let on_device = operands.is_on_device();
        let values = |tensor| if on_device { &[][..] } else { indices::values(tensor) };
        let [seqstarts_at, kvstarts_at] = [seqstarts, kvstarts].map(|tensor| tensor.data.addr() as u64);
        let (seqstarts, kvstarts) = (values(seqstarts), values(kvstarts));
        for (input, starts, of, expected) in
            [("seqstarts", seqstarts, "query", tokens), ("kvstarts", kvstarts, "key", total_kvlen)]
        {
            if !on_device {
                indices::starts(input, starts)?;
                if usize::try_from(starts[batch]) != Ok(expected) {
                    return Err(Error::StartsTotal { input, of, got: starts[batch], expected });
                }
            }
        }
        indices::bound("max_seqlen", indices::values(max_seqlen), seqstarts)?;
        indices::bound("max_kvlen", indices::values(max_kvlen), kvstarts)?;
        let rows = [tokens, total_kvlen];
        let attention = Attention::check(config, (t1, batch), rows, decoding_batches, inputs[8], &mut aliases)?;
        let head_sink = checks::head_sink(config, t1, inputs[9].map(|sinks| &sinks.tensor), &mut aliases)?;
        let Attention { geometry, attn_mask } = attention;
        let pointers = AttentionPointers { query: query.data, attn_mask, head_sink };
        let rows_at = [key.data, value.data];
        #[cfg(feature = "cuda")]
        if on_device {
            let keys = kvcache_attention::DeviceKeys::Packed(kvcache_attention::DevicePacked {
                rows_at: rows_at.map(|rows| rows.addr() as u64),
                rows: total_kvlen,
                seqstarts: seqstarts_at,
                kvstarts: kvstarts_at,
                exact_rows: operands.at_most.is_none(),
                status: 0,
            });
            let work = crate::device::attention(geometry, pointers, keys, tokens, bounds);
            return Ok(Checked::new(
                self.backends,
                (work, attention.outputs(rows), aliases),
                operands.take_guards(KIND),
            ));
        }
        #[cfg(not(feature = "cuda"))]
        let _ = (seqstarts_at, kvstarts_at);
        let keys = Keys::Packed { pointers: rows_at, indices: AttentionIndices { seqstarts, kvstarts } };
        // SAFETY: types, shapes, indices and alignment have been checked above; each tensor's memory is valid for reads
        // for 'a, as a `TensorRef`.
        let work = Work::Attention(unsafe { AttentionProblem::assume_checked(geometry, keys, pointers) });
        Ok(Checked::new(self.backends, (work, attention.outputs(rows), aliases), operands.take_guards(KIND)))
    }
}
