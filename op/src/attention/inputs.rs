//! What the attention operators read.

use crate::inputs::Inputs;
use crate::tensor::TensorRef;

/// The inputs of `MultiHeadAttention`. Everything is checked when a call is made.
#[derive(Debug, Clone)]
pub struct AttentionInputs<'a> {
    /// T1, shape (`seqstarts[B]`, Hq, Dh).
    pub query: TensorRef<'a>,
    /// T1, shape (`kvstarts[B]`, Hk, Dh).
    pub key: TensorRef<'a>,
    /// T1, shape (`kvstarts[B]`, Hk, Dh).
    pub value: TensorRef<'a>,
    /// int64, shape (B + 1).
    pub seqstarts: TensorRef<'a>,
    /// int64, shape (B + 1).
    pub kvstarts: TensorRef<'a>,
    /// int64, a scalar or of shape (1).
    pub decoding_batches: TensorRef<'a>,
    /// int64, a scalar or of shape (1).
    pub max_seqlen: TensorRef<'a>,
    /// int64, a scalar or of shape (1).
    pub max_kvlen: TensorRef<'a>,
    /// T1, shape (`seqstarts[B]`, W) or (Hq, `seqstarts[B]`, W), if given; without elements it is as good as none.
    pub attn_mask: Option<TensorRef<'a>>,
}

/// The inputs of `MultiHeadCacheAttention` that are only read. Everything is checked when a call is made.
#[derive(Debug, Clone)]
pub struct CacheAttentionInputs<'a> {
    /// T1, shape (`seqstarts[B]`, Hq, Dh).
    pub query: TensorRef<'a>,
    /// Those that are `KeyValueCache`'s: the current keys and values, and where tokens are.
    pub stored: Inputs<'a>,
    /// int64, a scalar or of shape (1).
    pub decoding_batches: TensorRef<'a>,
    /// T1, shape (`seqstarts[B]`, W) or (Hq, `seqstarts[B]`, W), if given; without elements it is as good as none.
    pub attn_mask: Option<TensorRef<'a>>,
}
