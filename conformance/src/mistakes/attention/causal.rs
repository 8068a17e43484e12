//! Mistakes of the causal mask and of decoding_batches.

use crate::mistakes::mistake::Mistake;
use crate::oracle::Behavior;
use crate::oracle::attention::ragged::Ragged;

pub(in crate::mistakes) const MISTAKES: &[Mistake] = &[
    Mistake::of_attention(
        "causal-mask.decoding",
        "decoding-batches-ignored",
        "decoding_batches is not looked at: the first decoding_batches sequences have no causal mask, however many \
         queries they have.",
        |behavior| behavior.attention.has_causal_mask = |ragged, b| ragged.is_causal && ragged.seqlen(b) > 1,
    ),
    Mistake::of_attention(
        "causal-mask.decoding",
        "decoding-batches-one-more",
        "The first decoding_batches + 1 sequences have no causal mask: it should be decoding_batches.",
        |behavior| {
            behavior.attention.has_causal_mask =
                |ragged, b| has_queries(ragged, b) && b as i128 > i128::from(ragged.decoding_batches);
        },
    ),
    Mistake::of_attention(
        "causal-mask.decoding",
        "decoding-batches-one-less",
        "The first decoding_batches - 1 sequences have no causal mask: it should be decoding_batches.",
        |behavior| {
            behavior.attention.has_causal_mask =
                |ragged, b| has_queries(ragged, b) && b as i128 + 1 >= i128::from(ragged.decoding_batches);
        },
    ),
    Mistake::of_attention(
        "causal-mask.decoding",
        "decoding-batches-taken-as-flag",
        "A decoding_batches that is not 0 takes the causal mask from all sequences: it should from the first \
         decoding_batches.",
        |behavior| {
            behavior.attention.has_causal_mask = |ragged, b| has_queries(ragged, b) && ragged.decoding_batches == 0;
        },
    ),
    Mistake::of_attention(
        "causal-mask.decoding",
        "decoding-batches-inverted",
        "The first decoding_batches sequences have the causal mask and the others have none: it is the other way.",
        |behavior| {
            behavior.attention.has_causal_mask =
                |ragged, b| has_queries(ragged, b) && (b as i128) < i128::from(ragged.decoding_batches);
        },
    ),
    Mistake::of_attention(
        "causal-mask.decoding",
        "decoding-batches-at-end",
        "The last decoding_batches sequences have no causal mask: it is the first that are decoding.",
        |behavior| {
            behavior.attention.has_causal_mask = |ragged, b| {
                has_queries(ragged, b) && (b as i128) < ragged.len() as i128 - i128::from(ragged.decoding_batches)
            };
        },
    ),
    Mistake::of_attention(
        "decoding-batches",
        "decoding-batches-as-int32",
        "decoding_batches is cut to 32 bits: what is beyond becomes 0 or negative, it should count as B.",
        |behavior| {
            behavior.attention.has_causal_mask =
                |ragged, b| has_queries(ragged, b) && b as i64 >= i64::from(ragged.decoding_batches as i32);
        },
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-ignored",
        "There is no causal mask: with is_causal 1, query i sees key j if j <= m - n + i.",
        |behavior| behavior.attention.has_causal_mask = |_, _| false,
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-without-is-causal",
        "is_causal is not looked at, and every sequence has the causal mask: with is_causal 0 none has it.",
        |behavior| {
            behavior.attention.has_causal_mask =
                |ragged, b| ragged.seqlen(b) > 1 && b as i128 >= i128::from(ragged.decoding_batches);
        },
    ),
    Mistake::of_attention(
        "causal-mask",
        "is-causal-inverted",
        "The causal mask is there with is_causal 0, and not with 1.",
        |behavior| {
            behavior.attention.has_causal_mask = |ragged, b| {
                !ragged.is_causal && ragged.seqlen(b) > 1 && b as i128 >= i128::from(ragged.decoding_batches)
            };
        },
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-hides-own-key",
        "The causal mask hides a query's own key, one too many: query i sees key j if j <= m - n + i.",
        |behavior| behavior.attention.sees = |_, query, j| j < query.position(),
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-hides-own-key-of-single-queries",
        "The causal mask hides a query's own key, that of a sequence's only query, too: query i sees key j if \
         j <= m - n + i.",
        |behavior| {
            every_sequence(behavior);
            behavior.attention.sees = |_, query, j| j < query.position();
        },
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-shows-next-key",
        "The causal mask leaves a query the key behind its own: query i sees key j if j <= m - n + i.",
        |behavior| behavior.attention.sees = |_, query, j| j <= query.position() + 1,
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-at-start",
        "The causal mask is aligned at the first key, query i sees key j if j <= i: it should be aligned at the end, \
         j <= m - n + i, where m - n keys are past ones.",
        |behavior| behavior.attention.sees = |_, query, j| j <= query.i,
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-at-start-of-single-queries",
        "The causal mask is aligned at the first key, so that a sequence's only query sees key 0 alone: query i sees \
         key j if j <= m - n + i, where m - n keys are past ones.",
        |behavior| {
            every_sequence(behavior);
            behavior.attention.sees = |_, query, j| j <= query.i;
        },
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-at-start-of-decoding-too",
        "The causal mask is aligned at the first key, and decoding sequences have it, too: query i sees key j if \
         j <= m - n + i, and the first decoding_batches sequences have no mask.",
        |behavior| {
            behavior.attention.has_causal_mask = |ragged, _| ragged.is_causal;
            behavior.attention.sees = |_, query, j| j <= query.i;
        },
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-only-without-past",
        "Sequences with past keys have no causal mask, as if each had one query: query i sees key j if j <= m - n + i.",
        |behavior| {
            behavior.attention.sees = |_, query, j| query.m != query.n || j <= query.position();
        },
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-hides-past",
        "The causal mask hides the past keys, too: query i sees key j if j <= m - n + i, the past ones among them.",
        |behavior| {
            behavior.attention.sees = |_, query, j| (query.m - query.n..=query.position()).contains(&j);
        },
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-offset-of-bounds",
        "The causal mask is aligned by max_kvlen - max_seqlen: by m - n of each sequence.",
        |behavior| {
            behavior.attention.sees = |ragged, query, j| j <= ragged.max_kvlen - ragged.max_seqlen + query.i;
        },
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-offset-of-max-kvlen",
        "The causal mask is aligned by max_kvlen - n: by m - n, with the keys m of each sequence.",
        |behavior| behavior.attention.sees = |ragged, query, j| j <= ragged.max_kvlen - query.n + query.i,
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-offset-of-max-seqlen",
        "The causal mask is aligned by m - max_seqlen: by m - n, with the queries n of each sequence.",
        |behavior| behavior.attention.sees = |ragged, query, j| j <= query.m - ragged.max_seqlen + query.i,
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-offset-of-first-sequence",
        "The causal mask of every sequence is aligned by m - n of the first: each has its own.",
        |behavior| behavior.attention.sees = |ragged, query, j| j <= ragged.kvlen(0) - ragged.seqlen(0) + query.i,
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-offset-not-negative",
        "Where a sequence has more queries than keys, the causal mask is aligned at the start: m - n is negative \
         there, and the first queries see nothing.",
        |behavior| behavior.attention.sees = |_, query, j| j <= (query.m - query.n).max(0) + query.i,
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-upside-down",
        "The causal mask shows the keys behind a query and hides those before: it is the other way, j <= m - n + i.",
        |behavior| behavior.attention.sees = |_, query, j| j >= query.position(),
    ),
    Mistake::of_attention(
        "causal-mask",
        "causal-mask-on-packed-rows",
        "The causal mask compares the rows of query and key in the packed batch: compare positions in the sequence.",
        |behavior| {
            behavior.attention.sees =
                |ragged, query, j| ragged.kvstarts[query.b] + j <= ragged.seqstarts[query.b] + query.i;
        },
    ),
    window::<2>("window-of-2"),
    window::<4>("window-of-4"),
    window::<8>("window-of-8"),
    window::<16>("window-of-16"),
    window::<32>("window-of-32"),
    window::<64>("window-of-64"),
    window::<128>("window-of-128"),
    window::<3>("window-of-2-and-own-key"),
    window::<5>("window-of-4-and-own-key"),
    window::<9>("window-of-8-and-own-key"),
    window::<17>("window-of-16-and-own-key"),
    window::<33>("window-of-32-and-own-key"),
    window::<65>("window-of-64-and-own-key"),
    window::<129>("window-of-128-and-own-key"),
];

/// Whether a sequence has queries for which the causal mask counts.
fn has_queries(ragged: &Ragged, b: usize) -> bool {
    ragged.is_causal && ragged.seqlen(b) > 1
}

/// The causal mask is there for sequences of one query, too, where it makes a difference if it is wrong.
fn every_sequence(behavior: &mut Behavior) {
    behavior.attention.has_causal_mask =
        |ragged, b| ragged.is_causal && b as i128 >= i128::from(ragged.decoding_batches);
}

/// Queries that see the last `N` keys alone, their own the last of them.
const fn window<const N: i64>(name: &'static str) -> Mistake {
    let about = "Queries see a window of the last keys up to their own: they see all keys that no mask hides.";
    Mistake::of_attention("scores", name, about, |behavior| {
        behavior.attention.hides = |query, j| j <= query.position() - N;
    })
}
