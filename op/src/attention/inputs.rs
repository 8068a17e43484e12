//! What the attention operators read.

use crate::inputs::Inputs;
use crate::tensor::TensorRef;

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
    /// `kvstarts[B]`; without elements it is as good as none.
    pub attn_mask: Option<TensorRef<'a>>,
}

/// The inputs of `MultiHeadCacheAttention` that are only read. Everything is checked when a call is made.
/// A call on a device reads those of type `T` on the device, and takes `kvstarts` as a `K`.
#[derive(Debug, Clone)]
pub struct CacheAttentionInputs<'a, T = TensorRef<'a>, K = TensorRef<'a>> {
    /// The queries, rotary embedding applied. T1, shape (`seqstarts[B]`, Hq, Dh).
    pub query: T,
    /// Those that are `KeyValueCache`'s: the current keys and values, and where tokens are.
    pub stored: Inputs<'a, T, K>,
    /// How many sequences, the first of the batch, get no causal mask. int64, a scalar or of shape (1), in memory of the
    /// host.
    pub decoding_batches: TensorRef<'a>,
    /// What is added to the scores, if given. T1, shape (`seqstarts[B]`, W) or (Hq, `seqstarts[B]`, W), W at least
    /// `kvstarts[B]`; without elements it is as good as none.
    pub attn_mask: Option<T>,
}
