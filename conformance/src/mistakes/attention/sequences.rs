//! Mistakes of which rows belong to a sequence: its queries, its keys, and its rows of the output.

use std::ops::Range;

use half::f16;
use kvcache_schema::ElementType;

use crate::mistakes::mistake::Mistake;
use crate::oracle::Behavior;
use crate::oracle::attention::decisions::{Key, keys};
use crate::oracle::attention::ragged::Ragged;

pub(in crate::mistakes) const MISTAKES: &[Mistake] = &[
    Mistake::of_attention(
        "scores",
        "last-key-not-attended",
        "The last key of each sequence is left out: it has kvstarts[b+1] - kvstarts[b].",
        |behavior| behavior.attention.keys = |ragged, b| cut(ragged, b, 0, 1),
    ),
    Mistake::of_attention(
        "scores",
        "first-key-not-attended",
        "The first key of each sequence is left out: its keys begin at kvstarts[b].",
        |behavior| behavior.attention.keys = |ragged, b| cut(ragged, b, 1, 0),
    ),
    Mistake::of_attention(
        "scores",
        "one-key-too-many",
        "A sequence's queries see a key behind its last one: it has kvstarts[b+1] - kvstarts[b].",
        |behavior| behavior.attention.keys = |ragged, b| keys(ragged.kvstarts[b]..ragged.kvstarts[b + 1] + 1, 0),
    ),
    Mistake::of_attention(
        "scores",
        "current-keys-not-attended",
        "Queries see the past keys alone: those of the current tokens count, too.",
        |behavior| behavior.attention.keys = |ragged, b| cut(ragged, b, 0, ragged.seqlen(b)),
    ),
    Mistake::of_attention(
        "scores",
        "past-keys-not-attended",
        "Queries see the keys of the current tokens alone: the past ones count, too.",
        |behavior| behavior.attention.keys = |ragged, b| cut(ragged, b, ragged.kvlen(b) - ragged.seqlen(b), 0),
    ),
    Mistake::of_attention(
        "scores",
        "keys-of-first-sequence",
        "Every sequence's keys are read from packed row 0 on: they begin at kvstarts[b].",
        |behavior| behavior.attention.keys = |ragged, b| keys(0..ragged.kvlen(b), 0),
    ),
    Mistake::of_attention(
        "scores",
        "keys-at-seqstarts",
        "Keys are read from packed row seqstarts[b] on: they begin at kvstarts[b].",
        |behavior| {
            behavior.attention.keys = |ragged, b| keys(ragged.seqstarts[b]..ragged.seqstarts[b] + ragged.kvlen(b), 0)
        },
    ),
    Mistake::of_attention(
        "scores",
        "keys-between-seqstarts",
        "A sequence's keys are taken as packed rows seqstarts[b] to seqstarts[b+1]: kvstarts says which they are.",
        |behavior| behavior.attention.keys = |ragged, b| keys(ragged.queries(b), 0),
    ),
    Mistake::of_attention(
        "scores",
        "keys-of-equal-lengths",
        "Packed keys are cut into sequences of equal length: those of sequence b begin at row kvstarts[b].",
        |behavior| behavior.attention.keys = |ragged, b| keys(equal(ragged, ragged.total_keys(), b), 0),
    ),
    Mistake::of_attention(
        "scores",
        "sequences-not-separated",
        "Queries see the keys of all sequences, and the causal mask is the only one: each sequence has its own keys.",
        |behavior| behavior.attention.keys = |ragged, b| keys(0..ragged.total_keys(), -ragged.kvstarts[b]),
    ),
    Mistake::of_attention(
        "scores",
        "sequences-not-separated-but-causal-within",
        "Queries see the keys of all other sequences, and of their own what the causal mask leaves.",
        |behavior| {
            behavior.attention.keys = |ragged, b| keys(0..ragged.total_keys(), -ragged.kvstarts[b]);
            behavior.attention.sees = |_, query, j| !(0..query.m).contains(&j) || j <= query.position();
        },
    ),
    Mistake::of_attention(
        "scores",
        "sequences-not-separated-causal-on-packed-rows",
        "Queries see the keys of all sequences as far as their packed row is not behind the query's: each sequence has \
         its own keys, and the causal mask compares positions in it.",
        |behavior| {
            behavior.attention.keys = |ragged, b| keys(0..ragged.total_keys(), -ragged.kvstarts[b]);
            behavior.attention.sees =
                |ragged, query, j| ragged.kvstarts[query.b] + j <= ragged.seqstarts[query.b] + query.i;
        },
    ),
    Mistake::of_attention(
        "equivalence",
        "padding-keys-attended",
        "Sequences are padded with keys of zeros to the longest, or to max_kvlen, and queries see these: hide them.",
        |behavior| behavior.attention.keys = padded,
    ),
    behind_last_block::<4>("keys-behind-last-block-of-4-ignored"),
    behind_last_block::<8>("keys-behind-last-block-of-8-ignored"),
    behind_last_block::<16>("keys-behind-last-block-of-16-ignored"),
    behind_last_block::<32>("keys-behind-last-block-of-32-ignored"),
    behind_last_block::<64>("keys-behind-last-block-of-64-ignored"),
    Mistake::of_attention(
        "scores",
        "elements-behind-8-ignored",
        "Inner products leave out the elements of a head behind the last multiple of 8.",
        |behavior| behavior.attention.product_elements = |head_dim| head_dim - head_dim % 8,
    ),
    Mistake::of_attention(
        "scores",
        "elements-behind-16-ignored",
        "Inner products leave out the elements of a head behind the last multiple of 16.",
        |behavior| behavior.attention.product_elements = |head_dim| head_dim - head_dim % 16,
    ),
    Mistake::of_attention(
        "scores",
        "elements-behind-32-ignored",
        "Inner products leave out the elements of a head behind the last multiple of 32.",
        |behavior| behavior.attention.product_elements = |head_dim| head_dim - head_dim % 32,
    ),
    Mistake::of_attention(
        "scores",
        "elements-behind-64-ignored",
        "Inner products leave out the elements of a head behind the last multiple of 64.",
        |behavior| behavior.attention.product_elements = |head_dim| head_dim - head_dim % 64,
    ),
    Mistake::of_attention(
        "weights",
        "values-behind-8-ignored",
        "Elements of the output behind the last multiple of 8 in a head are zeros.",
        |behavior| behavior.attention.value_elements = |head_dim| head_dim - head_dim % 8,
    ),
    Mistake::of_attention(
        "weights",
        "values-behind-16-ignored",
        "Elements of the output behind the last multiple of 16 in a head are zeros.",
        |behavior| behavior.attention.value_elements = |head_dim| head_dim - head_dim % 16,
    ),
    Mistake::of_attention(
        "scores",
        "head-behind-8-ignored",
        "The elements of a head behind the last multiple of 8 are left out of inner products, and zeros in the output.",
        |behavior| of_head(behavior, |head_dim| head_dim - head_dim % 8),
    ),
    Mistake::of_attention(
        "scores",
        "head-behind-16-ignored",
        "The elements of a head behind the last multiple of 16 are left out of inner products, and zeros in the \
         output.",
        |behavior| of_head(behavior, |head_dim| head_dim - head_dim % 16),
    ),
    Mistake::of_attention(
        "scores",
        "elements-beyond-128-ignored",
        "Inner products leave out the elements of a head beyond 128.",
        |behavior| behavior.attention.product_elements = |head_dim| head_dim.min(128),
    ),
    Mistake::of_attention(
        "weights",
        "values-beyond-128-ignored",
        "Elements of the output beyond 128 in a head are zeros.",
        |behavior| behavior.attention.value_elements = |head_dim| head_dim.min(128),
    ),
    Mistake::of_attention(
        "scores",
        "head-beyond-128-ignored",
        "The elements of a head beyond 128 are left out of inner products, and zeros in the output.",
        |behavior| of_head(behavior, |head_dim| head_dim.min(128)),
    ),
    Mistake::of_attention(
        "causal-mask.decoding",
        "decoding-taken-as-last-queries",
        "Of the first decoding_batches sequences only the last query is answered: they may have more.",
        |behavior| {
            behavior.attention.queries = |ragged, b| {
                let all = ragged.queries(b);
                let is_decoding = (b as i128) < i128::from(ragged.decoding_batches);
                if is_decoding { all.start.max(all.end - 1)..all.end } else { all }
            };
        },
    ),
    Mistake::of_attention(
        "causal-mask.decoding",
        "decoding-taken-as-single-queries",
        "Of the first decoding_batches sequences only one query is answered: they may have more.",
        |behavior| {
            behavior.attention.queries = |ragged, b| {
                let all = ragged.queries(b);
                let is_decoding = (b as i128) < i128::from(ragged.decoding_batches);
                if is_decoding { all.start..all.end.min(all.start + 1) } else { all }
            };
        },
    ),
    Mistake::of_attention(
        "scores",
        "only-last-query",
        "Only the last query of each sequence is answered.",
        |behavior| {
            behavior.attention.queries =
                |ragged, b| ragged.queries(b).start.max(ragged.queries(b).end - 1)..ragged.queries(b).end;
        },
    ),
    Mistake::of_attention(
        "scores",
        "only-first-sequence-attended",
        "Only the queries of the first sequence are answered.",
        |behavior| behavior.attention.queries = |ragged, b| if b == 0 { ragged.queries(b) } else { 0..0 },
    ),
    Mistake::of_attention(
        "scores",
        "last-sequence-not-attended",
        "The last sequence is left out: a batch has one sequence less than seqstarts has entries.",
        |behavior| {
            behavior.attention.queries = |ragged, b| if b + 1 < ragged.len() { ragged.queries(b) } else { 0..0 };
        },
    ),
    Mistake::of_attention(
        "scores",
        "queries-of-equal-lengths",
        "Queries are cut into sequences of equal length: those of sequence b begin at row seqstarts[b].",
        |behavior| behavior.attention.queries = |ragged, b| equal(ragged, ragged.tokens(), b),
    ),
    Mistake::of_attention(
        "scores",
        "queries-at-kvstarts",
        "Queries are read, and their output written, from row kvstarts[b] on: they begin at seqstarts[b].",
        |behavior| {
            behavior.attention.queries = |ragged, b| ragged.kvstarts[b]..ragged.kvstarts[b] + ragged.seqlen(b);
        },
    ),
    Mistake::of_attention(
        "weights",
        "output-heads-first",
        "The output is written heads first, (Hq, tokens, Dh), into the shape (tokens, Hq, Dh).",
        |behavior| behavior.attention.output_head = |ragged, token, h| h * ragged.tokens() as usize + token,
    ),
    Mistake::of_attention(
        "weights",
        "output-of-shape-heads-first",
        "The output has the shape (Hq, tokens, Dh): it should be (tokens, Hq, Dh).",
        |behavior| {
            behavior.attention.output_head = |ragged, token, h| h * ragged.tokens() as usize + token;
            behavior.attention.output_shape =
                |ragged| vec![ragged.num_heads, ragged.tokens() as usize, ragged.head_dim];
        },
    ),
    Mistake::of_attention(
        "heads.grouped",
        "output-heads-by-group",
        "Heads are written in the order (num_heads / num_kv_heads, num_kv_heads): those that share a key head are \
         neighbors.",
        |behavior| {
            behavior.attention.output_head = |ragged, token, h| {
                let (key_head, r) = (h / ragged.group(), h % ragged.group());
                token * ragged.num_heads + r * ragged.kv_heads + key_head
            };
        },
    ),
    Mistake::of_attention(
        "heads.grouped",
        "output-heads-by-key-head",
        "Heads are taken in the order (num_heads / num_kv_heads, num_kv_heads), and written as if those that share a \
         key head were neighbors there.",
        |behavior| {
            behavior.attention.output_head = |ragged, token, h| {
                let (r, key_head) = (h / ragged.kv_heads, h % ragged.kv_heads);
                token * ragged.num_heads + key_head * ragged.group() + r
            };
        },
    ),
    Mistake::of_attention(
        "weights",
        "output-heads-reversed",
        "The heads of the output come in reverse order.",
        |behavior| {
            behavior.attention.output_head = |ragged, token, h| token * ragged.num_heads + ragged.num_heads - 1 - h;
        },
    ),
    Mistake::of_attention(
        "weights",
        "output-heads-merged",
        "The output has the shape (tokens, Hq * Dh): it should be (tokens, Hq, Dh).",
        |behavior| {
            behavior.attention.output_shape =
                |ragged| vec![ragged.tokens() as usize, ragged.num_heads * ragged.head_dim];
        },
    ),
    Mistake::of_attention(
        "weights",
        "output-of-a-batch",
        "The output has the shape (1, tokens, Hq, Dh): it should be (tokens, Hq, Dh).",
        |behavior| {
            behavior.attention.output_shape =
                |ragged| vec![1, ragged.tokens() as usize, ragged.num_heads, ragged.head_dim];
        },
    ),
    Mistake::of_attention(
        "precision",
        "output-of-float32",
        "The output is float32 where T1 is float16: round it to T1.",
        |behavior| behavior.attention.output_type = |_| ElementType::Float32,
    ),
    Mistake::of_attention(
        "equivalence",
        "output-saturated",
        "What is beyond the largest float16 becomes that in the output: it is an infinity.",
        |behavior| {
            behavior.attention.output = |element, x| match element {
                ElementType::Float16 => x.clamp(-f16::MAX.to_f64(), f16::MAX.to_f64()),
                _ => x,
            };
        },
    ),
    Mistake::of_attention(
        "precision",
        "output-truncated",
        "The output is truncated where it becomes float16: round to nearest, ties to even.",
        |behavior| {
            behavior.attention.output = |element, x| match element {
                // In the mean it is half a unit less: what is truncated is within that of the exact value.
                ElementType::Float16 if x.is_finite() => x - half_unit(x).copysign(x),
                _ => x,
            };
        },
    ),
];

/// So many elements of a head count, in inner products and in the output.
fn of_head(behavior: &mut Behavior, elements: fn(usize) -> usize) {
    behavior.attention.product_elements = elements;
    behavior.attention.value_elements = elements;
}

/// The keys of a sequence but for so many of the first and of the last.
fn cut(ragged: &Ragged, b: usize, first: i64, last: i64) -> Vec<Key> {
    let (all, first) = (ragged.keys(b), first.max(0));
    keys(all.start + first..all.end - last, first)
}

/// Sequence `b` of as many that have the same number of rows.
fn equal(ragged: &Ragged, rows: i64, b: usize) -> Range<i64> {
    let length = rows / ragged.len().max(1) as i64;
    length * b as i64..length * (b as i64 + 1)
}

/// The keys of a sequence, and behind them so many of zeros that there are as many as the longest sequence has.
fn padded(ragged: &Ragged, b: usize) -> Vec<Key> {
    let padding = (ragged.kvlen(b)..ragged.longest()).map(|j| Key { row: None, j });
    keys(ragged.keys(b), 0).into_iter().chain(padding).collect()
}

/// Keys in blocks of `N`, of which the last is left out unless it is full.
const fn behind_last_block<const N: i64>(name: &'static str) -> Mistake {
    let about = "Keys are taken in blocks, and a last block that is not full is left out.";
    Mistake::of_attention("scores", name, about, |behavior| {
        behavior.attention.keys = |ragged, b| cut(ragged, b, 0, ragged.kvlen(b) % N);
    })
}

/// Half a unit in the last place of float16.
fn half_unit(x: f64) -> f64 {
    let below = f16::from_bits(f16::from_f64(x.abs()).to_bits().saturating_sub(1));
    (f16::from_f64(x.abs()).to_f64() - below.to_f64()) / 2.0
}
