//! What a call of the attention operators says of its sequences, heads and mask.

use std::ops::Range;

use kvcache_schema::{AttentionAttributes, ElementType};

use crate::attention::Step;
use crate::oracle::behavior::Behavior;
use crate::oracle::inputs::indices;

/// The indices of a call, and the sizes of its tensors. The starts are those of a legal call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields have the specification's names")]
pub struct Ragged {
    pub t1: ElementType,
    pub seqstarts: Vec<i64>,
    pub kvstarts: Vec<i64>,
    pub decoding_batches: i64,
    pub max_seqlen: i64,
    pub max_kvlen: i64,
    /// Query heads (Hq).
    pub num_heads: usize,
    /// Key heads (Hk).
    pub kv_heads: usize,
    pub head_dim: usize,
    pub is_causal: bool,
    pub is_alibi: bool,
    /// The mask, if it has elements.
    pub mask: Option<MaskShape>,
    /// Whether a mask is given that has none.
    pub empty_mask: bool,
    /// Whether `decoding_batches` is a scalar, and not of shape `[1]`.
    pub scalar_decoding_batches: bool,
}

/// The shape of `attn_mask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskShape {
    /// Its planes, one for each query head; `None` if it has rank 2.
    pub planes: Option<usize>,
    /// Its rows, one for each row of `query`.
    pub rows: usize,
    /// Its columns (W).
    pub width: usize,
}

/// One row of the scores: query `i` of the `n` of sequence `b`, which has `m` keys, and query head `h`.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "described above")]
pub struct Query {
    pub b: usize,
    pub i: i64,
    pub n: i64,
    pub m: i64,
    pub h: usize,
}

impl Query {
    /// Its position among the keys: the last query is at the last key.
    pub fn position(&self) -> i64 {
        self.m - self.n + self.i
    }
}

impl Ragged {
    pub(super) fn new(t1: ElementType, attributes: &AttentionAttributes, step: &Step, behavior: &Behavior) -> Self {
        let read = |name: &str| step.inputs.get(name).map(|tensor| indices(tensor, behavior)).unwrap_or_default();
        let number = |name: &str| read(name).first().copied().unwrap_or_default();
        let size = |value: i64| usize::try_from(value).unwrap_or_default();
        let mask = step.inputs.get("attn_mask");
        let shape = mask.and_then(|mask| match *mask.shape() {
            [rows, width] if rows * width > 0 => Some(MaskShape { planes: None, rows, width }),
            [planes, rows, width] if planes * rows * width > 0 => Some(MaskShape { planes: Some(planes), rows, width }),
            _ => None,
        });
        let num_kv_heads = if attributes.num_kv_heads == 0 { attributes.num_heads } else { attributes.num_kv_heads };
        Self {
            t1,
            seqstarts: read("seqstarts"),
            kvstarts: read("kvstarts"),
            decoding_batches: number("decoding_batches"),
            max_seqlen: number("max_seqlen"),
            max_kvlen: number("max_kvlen"),
            num_heads: size(attributes.num_heads),
            kv_heads: size(num_kv_heads),
            head_dim: size(attributes.head_dim),
            is_causal: attributes.is_causal == 1,
            is_alibi: attributes.is_alibi == 1,
            mask: shape,
            empty_mask: mask.is_some() && shape.is_none(),
            scalar_decoding_batches: step.inputs.get("decoding_batches").is_some_and(|it| it.shape().is_empty()),
        }
    }

    /// The number of sequences.
    pub fn len(&self) -> usize {
        self.seqstarts.len().saturating_sub(1)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows of `query` that are a sequence's.
    pub fn queries(&self, b: usize) -> Range<i64> {
        self.seqstarts[b]..self.seqstarts[b + 1]
    }

    /// The packed rows of keys that are a sequence's.
    pub fn keys(&self, b: usize) -> Range<i64> {
        self.kvstarts[b]..self.kvstarts[b + 1]
    }

    /// The queries of a sequence.
    pub fn seqlen(&self, b: usize) -> i64 {
        self.seqstarts[b + 1] - self.seqstarts[b]
    }

    /// The keys of a sequence.
    pub fn kvlen(&self, b: usize) -> i64 {
        self.kvstarts[b + 1] - self.kvstarts[b]
    }

    /// The rows of `query`.
    pub fn tokens(&self) -> i64 {
        self.seqstarts.last().copied().unwrap_or_default()
    }

    /// The keys of all sequences.
    pub fn total_keys(&self) -> i64 {
        self.kvstarts.last().copied().unwrap_or_default()
    }

    /// The keys of the longest sequence.
    pub fn longest(&self) -> i64 {
        (0..self.len()).map(|b| self.kvlen(b)).max().unwrap_or(0)
    }

    /// How many query heads share a key head.
    pub fn group(&self) -> usize {
        (self.num_heads / self.kv_heads.max(1)).max(1)
    }
}
