//! What a call of the attention operators says of its sequences, heads and mask, and the rules of a legal one,
//! in stages: those of a stage can be asked only where those before hold. What `KeyValueCache` refuses of a call over a
//! cache is asked after them.

use std::ops::Range;

use kvcache_schema::{AttentionAttributes, ElementType};

use crate::attention::{Operator, Step};
use crate::oracle::attention::predict::{Attention, KeyHead, Keys, Queries};
use crate::oracle::call::{indices, number};
use crate::oracle::rules::{Broken, Legal};

/// The indices of a legal call, and the sizes of its tensors.
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
    /// The planes of the mask, if it has several, its rows and its columns (W); none if it has no elements.
    pub(super) mask: Option<(Option<usize>, usize, usize)>,
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
            [rows, width] if rows * width > 0 => Some((None, rows, width)),
            [planes, rows, width] if planes * rows * width > 0 => Some((Some(planes), rows, width)),
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

    pub(super) fn len(&self) -> usize {
        self.seqstarts.len().saturating_sub(1)
    }

    pub(super) fn seqlen(&self, b: usize) -> i64 {
        self.seqstarts[b + 1] - self.seqstarts[b]
    }

    pub(super) fn kvlen(&self, b: usize) -> i64 {
        self.kvstarts[b + 1] - self.kvstarts[b]
    }

    pub(super) fn is_decoding(&self, b: usize) -> bool {
        (b as i128) < i128::from(self.decoding_batches)
    }

    /// The rows of `query`, and the keys of all sequences.
    pub(super) fn totals(&self) -> [i64; 2] {
        [&self.seqstarts, &self.kvstarts].map(|starts| starts.last().copied().unwrap_or_default())
    }

    /// How many query heads share a key head.
    pub(super) fn group(&self) -> usize {
        (self.num_heads / self.kv_heads.max(1)).max(1)
    }

    pub(super) fn queries(&self, attention: &Attention, b: usize) -> Range<i64> {
        let own = self.seqstarts[b]..self.seqstarts[b + 1];
        match attention.queries {
            Queries::LastOfDecoding if self.is_decoding(b) => own.start.max(own.end - 1)..own.end,
            _ => own,
        }
    }

    /// The keys that sequence `b`'s queries are scored with: the packed row of each, none of a key of zeros, and its
    /// position in the sequence.
    pub(super) fn keys(&self, attention: &Attention, b: usize) -> Vec<(Option<usize>, i64)> {
        let (first, last, kvlen) = (self.kvstarts[b], self.kvstarts[b + 1], self.kvlen(b));
        let (rows, position) = match attention.keys {
            Keys::Own | Keys::Padded => (first..last, 0),
            Keys::AllSequences => (0..self.totals()[1], -first),
            Keys::WholeBlocks => (first..last - kvlen % attention.n as i64, 0),
        };
        let longest = (0..self.len()).map(|b| self.kvlen(b)).max().unwrap_or(0);
        let padding = kvlen..if attention.keys == Keys::Padded { longest } else { kvlen };
        let rows = rows.zip(position..).map(|(row, j)| (Some(row as usize), j));
        rows.chain(padding.map(|j| (None, j))).collect()
    }

    /// The first row of a sequence in packed keys, and its first column in `attn_mask` and the mass.
    pub(super) fn first_key(&self, b: usize) -> usize {
        self.kvstarts[b] as usize
    }

    pub(super) fn key_head(&self, attention: &Attention, h: usize) -> usize {
        match attention.key_head {
            KeyHead::Grouped => h / self.group(),
            KeyHead::Interleaved => h % self.kv_heads,
        }
    }
}

/// Whether a call of an attention operator is legal, as far as its own rules go.
pub(super) fn legal(operator: Operator, attributes: &AttentionAttributes, t1: ElementType, step: &Step) -> Legal {
    let mut broken = Broken::default();
    let input = |name: &str| step.input(name);
    // Where keys are packed, KeyValueCache checks neither keys nor indices.
    let packed = operator == Operator::MultiHeadAttention;
    let [key, value] = if packed { ["key", "value"] } else { ["current_key", "current_value"] };
    let own_indices: &[&str] = match packed {
        true => &["seqstarts", "kvstarts", "decoding_batches", "max_seqlen", "max_kvlen"],
        false => &["decoding_batches"],
    };
    let mask = step.inputs.get("attn_mask").filter(|mask| !mask.shape().contains(&0));

    broken.attributes(&AttentionAttributes::SPEC, attributes);
    let &AttentionAttributes { num_heads, num_kv_heads, head_dim, .. } = attributes;
    let divides = num_heads < 1 || num_kv_heads < 1 || num_heads % num_kv_heads == 0;
    broken.unless(divides, "attribute_out_of_range");
    broken.stage()?;

    // T1 has scores.
    broken.unless(t1.is_float(), "attention_type");
    broken.stage()?;
    [input("query"), input(key), input(value)].into_iter().chain(mask).for_each(|tensor| broken.element(tensor, t1));
    own_indices.iter().for_each(|name| broken.element(input(name), ElementType::Int64));
    broken.stage()?;

    [input("query"), input(key), input(value)].into_iter().for_each(|tensor| broken.rank(tensor, &[3]));
    mask.into_iter().for_each(|mask| broken.rank(mask, &[2, 3]));
    for name in own_indices {
        broken.rank(input(name), if name.ends_with("starts") { &[1] } else { &[0, 1] });
    }
    broken.stage()?;

    // Heads are those of the attributes, rows those of the other tensors.
    let size = |value: i64| usize::try_from(value).unwrap_or(usize::MAX);
    let kv_heads = size(if num_kv_heads == 0 { num_heads } else { num_kv_heads });
    let rows = |name: &str| input(name).shape()[0];
    // Over a cache, a query has the rows of the current tokens; packed keys have rows of their own.
    let tokens = rows(if packed { "query" } else { key });
    broken.shape(input("query").shape(), &[tokens, size(num_heads), size(head_dim)]);
    broken.shape(input(key).shape(), &[rows(key), kv_heads, size(head_dim)]);
    if packed {
        broken.shape(input(value).shape(), input(key).shape());
        let entries = rows("seqstarts");
        broken.unless(entries > 0, "shape_mismatch");
        broken.shape(input("kvstarts").shape(), &[entries]);
        broken.shape(input("max_seqlen").shape(), &[1]);
        broken.shape(input("max_kvlen").shape(), &[1]);
    }
    if let Some(mask) = mask {
        let (planes_and_rows, expected) = (&mask.shape()[..mask.shape().len() - 1], [size(num_heads), rows("query")]);
        broken.shape(planes_and_rows, &expected[2 - planes_and_rows.len()..]);
    }
    broken.shape(input("decoding_batches").shape(), &[1]);
    broken.stage()?;

    let (seqstarts, kvstarts) = (indices(input("seqstarts")), indices(input("kvstarts")));
    if packed {
        for (starts, of) in [(&seqstarts, "query"), (&kvstarts, "key")] {
            broken.rising(starts);
            broken.total(starts, rows(of));
        }
        broken.stage()?;
        broken.bound(number(input("max_seqlen")), &seqstarts);
        broken.bound(number(input("max_kvlen")), &kvstarts);
    }
    // A mask has a column for every key.
    let keys = kvstarts.last().copied().unwrap_or_default();
    let width = mask.and_then(|mask| mask.shape().last());
    broken.unless(width.is_none_or(|&width| i128::from(keys) <= width as i128), "mask_too_small");
    broken.unless(number(input("decoding_batches")) >= 0, "decoding_batches_negative");
    broken.stage()
}
