//! What a call of the attention operators says of its sequences, heads and mask.

use std::ops::Range;

use kvcache_schema::{AttentionAttributes, ElementType};

use crate::attention::Step;
use crate::oracle::call::{indices, number};

/// The indices of a call, and the sizes of its tensors. The starts are those of a legal call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ragged {
    pub(super) t1: ElementType,
    pub(super) seqstarts: Vec<i64>,
    pub(super) kvstarts: Vec<i64>,
    pub(super) decoding_batches: i64,
    pub(super) max_seqlen: i64,
    pub(super) max_kvlen: i64,
    /// Query heads (Hq).
    pub(super) num_heads: usize,
    /// Key heads (Hk).
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) is_causal: bool,
    pub(super) is_alibi: bool,
    /// The mask, if it has elements.
    pub(super) mask: Option<MaskShape>,
}

/// The shape of `attn_mask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MaskShape {
    /// Its planes, one for each query head; `None` if it has rank 2.
    pub(super) planes: Option<usize>,
    /// Its rows, one for each row of `query`.
    pub(super) rows: usize,
    /// Its columns (W).
    pub(super) width: usize,
}

/// One row of the scores: query `i` of the `n` of sequence `b`, which has `m` keys, and query head `h`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Query {
    pub(super) b: usize,
    pub(super) i: i64,
    pub(super) n: i64,
    pub(super) m: i64,
    pub(super) h: usize,
}

impl Query {
    /// Its position among the keys: the last query is at the last key.
    pub(super) fn position(&self) -> i64 {
        self.m - self.n + self.i
    }
}

impl Ragged {
    pub(super) fn new(t1: ElementType, attributes: &AttentionAttributes, step: &Step) -> Self {
        let size = |value: i64| usize::try_from(value).unwrap_or_default();
        let mask = step.inputs.get("attn_mask").and_then(|mask| match *mask.shape() {
            [rows, width] if rows * width > 0 => Some(MaskShape { planes: None, rows, width }),
            [planes, rows, width] if planes * rows * width > 0 => Some(MaskShape { planes: Some(planes), rows, width }),
            _ => None,
        });
        let &AttentionAttributes { num_heads, num_kv_heads, head_dim, is_causal, is_alibi, .. } = attributes;
        Self {
            t1,
            seqstarts: indices(step.input("seqstarts")),
            kvstarts: indices(step.input("kvstarts")),
            decoding_batches: number(step.input("decoding_batches")),
            max_seqlen: number(step.input("max_seqlen")),
            max_kvlen: number(step.input("max_kvlen")),
            num_heads: size(num_heads),
            kv_heads: size(if num_kv_heads == 0 { num_heads } else { num_kv_heads }),
            head_dim: size(head_dim),
            is_causal: is_causal == 1,
            is_alibi: is_alibi == 1,
            mask,
        }
    }

    /// The number of sequences.
    pub(super) fn len(&self) -> usize {
        self.seqstarts.len().saturating_sub(1)
    }

    /// The rows of `query` that are a sequence's.
    pub(super) fn queries(&self, b: usize) -> Range<i64> {
        self.seqstarts[b]..self.seqstarts[b + 1]
    }

    /// The packed rows of keys that are a sequence's.
    pub(super) fn keys(&self, b: usize) -> Range<i64> {
        self.kvstarts[b]..self.kvstarts[b + 1]
    }

    /// The queries of a sequence.
    pub(super) fn seqlen(&self, b: usize) -> i64 {
        self.seqstarts[b + 1] - self.seqstarts[b]
    }

    /// The keys of a sequence.
    pub(super) fn kvlen(&self, b: usize) -> i64 {
        self.kvstarts[b + 1] - self.kvstarts[b]
    }

    /// Whether it is one of the first `decoding_batches` sequences.
    pub(super) fn is_decoding(&self, b: usize) -> bool {
        (b as i128) < i128::from(self.decoding_batches)
    }

    /// The rows of `query`.
    pub(super) fn tokens(&self) -> i64 {
        self.seqstarts.last().copied().unwrap_or_default()
    }

    /// The keys of all sequences.
    pub(super) fn total_keys(&self) -> i64 {
        self.kvstarts.last().copied().unwrap_or_default()
    }

    /// The keys of the longest sequence.
    pub(super) fn longest(&self) -> i64 {
        (0..self.len()).map(|b| self.kvlen(b)).max().unwrap_or(0)
    }

    /// How many query heads share a key head.
    pub(super) fn group(&self) -> usize {
        (self.num_heads / self.kv_heads.max(1)).max(1)
    }
}
