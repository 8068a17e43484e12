//! The decisions of attention, one function or value each.

use std::ops::Range;

use kvcache_schema::ElementType;

use crate::oracle::attention::ragged::{MaskShape, Query, Ragged};

/// What the oracle of attention does. [`Attention::default`] is the specification; a mistake changes one field of it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(unpredictable_function_pointer_comparisons, reason = "the same function does the same; others may, too")]
pub struct Attention {
    /// What becomes of the elements of query, key and value that are read: nothing, where there is no such function.
    pub reads: Option<fn(f64) -> f64>,
    /// The rows of `query`, and of `attn_output`, that belong to a sequence.
    pub queries: fn(&Ragged, b: usize) -> Range<i64>,
    /// The keys that a sequence's queries are scored with.
    pub keys: fn(&Ragged, b: usize) -> Vec<Key>,
    /// The key head of a query head: `h / (Hq/Hk)`.
    pub key_head: fn(&Ragged, h: usize) -> usize,
    /// The value head of a query head: that of its key, where there is no such function.
    pub value_head: Option<fn(&Ragged, h: usize) -> usize>,
    /// The elements of a head that inner products are taken over, from the first: all.
    pub product_elements: fn(head_dim: usize) -> usize,
    /// The elements of a head that the output has, from the first: all. The others are zeros.
    pub value_elements: fn(head_dim: usize) -> usize,
    /// What an inner product is multiplied with: `1 / sqrt(Dh)`.
    pub factor: fn(&Ragged) -> f64,

    /// Whether a sequence has the causal mask.
    pub has_causal_mask: fn(&Ragged, b: usize) -> bool,
    /// Whether, with the causal mask, a query sees the key at position `j`.
    pub sees: fn(&Ragged, &Query, j: i64) -> bool,
    /// Whether a query does not see the key at position `j`, causal mask or not: it sees all that masks leave.
    pub hides: fn(&Query, j: i64) -> bool,
    /// Whether a sequence has ALiBi's mask.
    pub has_alibi: fn(&Ragged, b: usize) -> bool,
    /// The slope of a query head.
    pub slope: fn(&Ragged, h: usize) -> f64,
    /// What ALiBi adds for the key at position `j`.
    pub bias: fn(&Ragged, &Query, slope: f64, j: i64) -> f64,
    /// The number of the element of `attn_mask`, in row-major order, for the key at position `j`; `None` if the mask
    /// is not looked at.
    pub mask_element: fn(&Ragged, &MaskShape, &Query, j: i64) -> Option<i64>,
    /// The score of a key.
    pub score: fn(&Terms) -> f64,

    /// The weights of scores.
    pub softmax: fn(ElementType, &[f64]) -> Vec<f64>,
    /// Whether the weights are exponentials of scores; else they are the scores.
    pub exponentiates: bool,
    /// Which scores the weights add up to 1 over.
    pub normalized_over: Axis,
    /// Whether the value of a key with score -inf is multiplied with its weight: it does not matter, whatever it is.
    pub adds_hidden_values: bool,
    /// What becomes of a query that sees no key: zeros.
    pub rows_without_keys: RowsWithoutKeys,
    /// The type that the terms and partial sums of inner products are rounded to; `None` for float32 or better.
    pub sums_of_products: fn(ElementType) -> Option<ElementType>,
    /// The same of sums of weighted values.
    pub sums_of_values: fn(ElementType) -> Option<ElementType>,

    /// Whether weights are divided by their sum after the values were summed with them: it does not matter where sums
    /// are of float32 or better.
    pub divides_last: bool,

    /// The shape of `attn_output`.
    pub output_shape: fn(&Ragged) -> Vec<usize>,
    /// Where a token's head lies in it, in heads.
    pub output_head: fn(&Ragged, token: usize, h: usize) -> usize,
    /// Its type: T1.
    pub output_type: fn(ElementType) -> ElementType,
    /// What becomes of an element before it is rounded to nearest.
    pub output: fn(ElementType, f64) -> f64,
    /// Whether a legal call is refused nevertheless: never.
    pub refuses: fn(&Ragged) -> bool,
}

/// A key of a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its packed row; `None` if it is a key of zeros.
    pub row: Option<i64>,
    /// Its position in the sequence.
    pub j: i64,
}

/// What the score of a key is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// The inner product of query and key.
    pub product: f64,
    /// What it is multiplied with.
    pub factor: f64,
    /// What the causal mask adds: 0 or -inf.
    pub causal: Option<f64>,
    /// What ALiBi adds.
    pub alibi: Option<f64>,
    /// What `attn_mask` adds.
    pub attn_mask: Option<f64>,
}

/// What a query gives that sees no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsWithoutKeys {
    /// Zeros.
    Zeros,
    /// NaN where its sequence has keys.
    NanOfHidden,
    /// NaN.
    Nan,
    /// The mean of all values of its sequence.
    Mean,
}

/// An axis of the scores of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "described above")]
pub enum Axis {
    Keys,
    Queries,
    Heads,
}

impl Default for Attention {
    fn default() -> Self {
        Self {
            reads: None,
            queries: Ragged::queries,
            keys: |ragged, b| keys(ragged.keys(b), 0),
            key_head: |ragged, h| h / ragged.group(),
            value_head: None,
            product_elements: |head_dim| head_dim,
            value_elements: |head_dim| head_dim,
            factor: |ragged| 1.0 / (ragged.head_dim as f64).sqrt(),
            has_causal_mask: |ragged, b| {
                ragged.is_causal && ragged.seqlen(b) > 1 && b as i128 >= i128::from(ragged.decoding_batches)
            },
            sees: |_, query, j| j <= query.position(),
            hides: |_, _| false,
            has_alibi: |ragged, _| ragged.is_alibi,
            slope: |ragged, h| slopes(ragged.num_heads)[h],
            bias: |_, query, slope, j| match j <= query.position() {
                true => slope * (j - query.position()) as f64,
                false => f64::NEG_INFINITY,
            },
            mask_element: |ragged, mask, query, j| {
                let (plane, row) = (mask.planes.map_or(0, |_| query.h), ragged.seqstarts[query.b] + query.i);
                Some(
                    (plane * mask.rows) as i64 * mask.width as i64
                        + row * mask.width as i64
                        + ragged.kvstarts[query.b]
                        + j,
                )
            },
            score: Terms::score,
            softmax: |_, scores| softmax(scores),
            exponentiates: true,
            normalized_over: Axis::Keys,
            adds_hidden_values: false,
            rows_without_keys: RowsWithoutKeys::Zeros,
            sums_of_products: |_| None,
            sums_of_values: |_| None,
            divides_last: false,
            output_shape: |ragged| vec![ragged.tokens() as usize, ragged.num_heads, ragged.head_dim],
            output_head: |ragged, token, h| token * ragged.num_heads + h,
            output_type: |t1| t1,
            output: |_, x| x,
            refuses: |_| false,
        }
    }
}

impl Terms {
    /// The score: what -inf is added to is -inf, whatever it was.
    pub fn score(&self) -> f64 {
        self.masks().fold(self.product * self.factor, |score, mask| match mask == f64::NEG_INFINITY {
            true => mask,
            false => score + mask,
        })
    }

    /// What the masks add, in their order.
    pub fn masks(&self) -> impl Iterator<Item = f64> {
        [self.causal, self.alibi, self.attn_mask].into_iter().flatten()
    }
}

/// The keys of packed rows, of which the first is at position `first`.
pub fn keys(rows: Range<i64>, first: i64) -> Vec<Key> {
    rows.enumerate().map(|(j, row)| Key { row: Some(row), j: first + j as i64 }).collect()
}

/// The weights of scores: zeros where every score is -inf.
pub fn softmax(scores: &[f64]) -> Vec<f64> {
    let seen = || scores.iter().filter(|&&score| score != f64::NEG_INFINITY);
    let Some(largest) = seen().copied().reduce(larger) else { return vec![0.0; scores.len()] };
    let exps: Vec<_> = scores.iter().map(|&score| (score - largest).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|exp| exp / sum).collect()
}

/// The larger of the two; NaN stays.
pub fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// The slopes of ALiBi: those of the largest power of two, then every second one of its double.
pub fn slopes(num_heads: usize) -> Vec<f64> {
    let c = 1 << num_heads.max(1).ilog2();
    let first = (1..=c).map(|k| (-8.0 * k as f64 / c as f64).exp2());
    let others = (0..).map(|k| (-4.0 * (2 * k + 1) as f64 / c as f64).exp2());
    first.chain(others).take(num_heads).collect()
}
