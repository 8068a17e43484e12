//! Mistakes of attn_mask: which of its elements are added, how, and beside what.

use crate::mistakes::mistake::Mistake;
use crate::oracle::attention::decisions::Terms;
use crate::oracle::attention::ragged::{MaskShape, Query, Ragged};

pub(in crate::mistakes) const MISTAKES: &[Mistake] = &[
    Mistake::of_attention("attn-mask", "mask-ignored", "attn_mask is not looked at.", |behavior| {
        behavior.attention.mask_element = |_, _, _, _| None;
    }),
    Mistake::of_attention(
        "attn-mask",
        "mask-only-hides",
        "attn_mask hides keys where it is -inf, but its other values are not added.",
        |behavior| {
            behavior.attention.score = |terms| Terms { attn_mask: hidden(terms.attn_mask), ..*terms }.score();
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-nan-taken-as-0",
        "NaN in attn_mask is taken as 0: it is added, and the query that sees it gives NaN.",
        |behavior| {
            behavior.attention.score =
                |terms| Terms { attn_mask: terms.attn_mask.filter(|mask| !mask.is_nan()), ..*terms }.score();
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-nan-hides",
        "NaN in attn_mask hides a key: it is added, and the query that sees it gives NaN.",
        |behavior| {
            behavior.attention.score = |terms| {
                let hidden = |mask: f64| if mask.is_nan() { f64::NEG_INFINITY } else { mask };
                Terms { attn_mask: terms.attn_mask.map(hidden), ..*terms }.score()
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-does-not-hide",
        "Values of attn_mask are added, but for -inf, which should hide the key.",
        |behavior| {
            behavior.attention.score = |terms| {
                Terms { attn_mask: terms.attn_mask.filter(|&mask| mask != f64::NEG_INFINITY), ..*terms }.score()
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-multiplied",
        "Scores are multiplied with attn_mask: it is added.",
        |behavior| {
            behavior.attention.score =
                |terms| Terms { attn_mask: None, ..*terms }.score() * terms.attn_mask.unwrap_or(1.0);
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-nonzero-sees",
        "attn_mask is taken as true and false: a value that is not 0 shows a key, and 0 hides it. It is added.",
        |behavior| {
            behavior.attention.score =
                |terms| Terms { attn_mask: terms.attn_mask.map(|mask| shown(mask != 0.0)), ..*terms }.score();
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-nonzero-hides",
        "attn_mask is taken as true and false: a value that is not 0 hides a key. It is added.",
        |behavior| {
            behavior.attention.score =
                |terms| Terms { attn_mask: terms.attn_mask.map(|mask| shown(mask == 0.0)), ..*terms }.score();
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-negative-hides",
        "attn_mask is taken as true and false: a value below 0 hides a key. It is added.",
        |behavior| {
            behavior.attention.score =
                |terms| Terms { attn_mask: terms.attn_mask.map(|mask| shown(mask >= 0.0)), ..*terms }.score();
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-never-positive",
        "Values of attn_mask above 0 count as 0: they are added as they are.",
        |behavior| {
            behavior.attention.score =
                |terms| Terms { attn_mask: terms.attn_mask.map(|mask| mask.min(0.0)), ..*terms }.score();
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "masks-without-log2e",
        "Inner products are multiplied with log2(e) for exp2(), and attn_mask and ALiBi are not: multiply the whole \
         score.",
        |behavior| {
            behavior.attention.score = |terms| {
                let of_base_2 = |mask: Option<f64>| mask.map(|mask| mask * std::f64::consts::LN_2);
                let (attn_mask, alibi) = (of_base_2(terms.attn_mask), of_base_2(terms.alibi));
                Terms { attn_mask, alibi, ..*terms }.score()
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-without-log2e",
        "Inner products are multiplied with log2(e) for exp2(), and attn_mask is not: multiply the whole score.",
        |behavior| {
            behavior.attention.score = |terms| {
                let attn_mask = terms.attn_mask.map(|mask| mask * std::f64::consts::LN_2);
                Terms { attn_mask, ..*terms }.score()
            };
        },
    ),
    Mistake::of_attention("attn-mask", "mask-subtracted", "attn_mask is subtracted: it is added.", |behavior| {
        behavior.attention.score = |terms| {
            let subtracted = |mask: f64| if mask == f64::NEG_INFINITY { mask } else { -mask };
            Terms { attn_mask: terms.attn_mask.map(subtracted), ..*terms }.score()
        };
    }),
    Mistake::of_attention(
        "attn-mask",
        "mask-before-scaling",
        "attn_mask is added to the inner product before that is divided by the square root of head_dim: add it after.",
        |behavior| {
            behavior.attention.score = |terms| {
                let product = terms.product + finite(terms.attn_mask);
                Terms { product, attn_mask: hidden(terms.attn_mask), ..*terms }.score()
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "masks-before-scaling",
        "attn_mask and ALiBi are added to the inner product before that is divided by the square root of head_dim: add \
         them after.",
        |behavior| {
            behavior.attention.score = |terms| {
                let product = terms.product + finite(terms.attn_mask) + finite(terms.alibi);
                let (attn_mask, alibi) = (hidden(terms.attn_mask), hidden(terms.alibi));
                Terms { product, attn_mask, alibi, ..*terms }.score()
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask.beside",
        "mask-replaces-causal-mask",
        "With an attn_mask there is no causal mask: it adds to that.",
        |behavior| {
            behavior.attention.has_causal_mask = |ragged, b| causal(ragged, b) && ragged.mask.is_none();
        },
    ),
    Mistake::of_attention(
        "attn-mask.beside",
        "mask-replaces-alibi",
        "With an attn_mask there is no ALiBi: it adds to that.",
        |behavior| behavior.attention.has_alibi = |ragged, _| ragged.is_alibi && ragged.mask.is_none(),
    ),
    Mistake::of_attention(
        "attn-mask.beside",
        "mask-replaces-all",
        "With an attn_mask there are neither causal mask nor ALiBi: it adds to them.",
        |behavior| {
            behavior.attention.has_causal_mask = |ragged, b| causal(ragged, b) && ragged.mask.is_none();
            behavior.attention.has_alibi = |ragged, _| ragged.is_alibi && ragged.mask.is_none();
        },
    ),
    Mistake::of_attention(
        "attn-mask.beside",
        "alibi-replaces-mask",
        "With ALiBi attn_mask is not looked at: both are added.",
        |behavior| {
            behavior.attention.mask_element =
                |ragged, mask, query, j| (!ragged.is_alibi).then(|| element(ragged, mask, query, j));
        },
    ),
    Mistake::of_attention(
        "attn-mask.beside",
        "causal-mask-replaces-mask",
        "In sequences with the causal mask attn_mask is not looked at: both are added.",
        |behavior| {
            behavior.attention.mask_element =
                |ragged, mask, query, j| (!causal(ragged, query.b)).then(|| element(ragged, mask, query, j));
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-not-for-decoding",
        "attn_mask is left out of the first decoding_batches sequences: every sequence has a block.",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                (query.b as i128 >= i128::from(ragged.decoding_batches)).then(|| element(ragged, mask, query, j))
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-first-plane-for-all",
        "The first plane of an attn_mask of rank 3 is used for all query heads: each has its own.",
        |behavior| behavior.attention.mask_element = |ragged, mask, query, j| at(ragged, mask, query, 0, j),
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-plane-of-key-head",
        "The planes of an attn_mask of rank 3 are taken by key head: each query head has its own.",
        |behavior| {
            behavior.attention.mask_element =
                |ragged, mask, query, j| at(ragged, mask, query, query.h / ragged.group(), j);
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-planes-tiled",
        "Query head h reads plane h % num_kv_heads of an attn_mask of rank 3: each query head has its own.",
        |behavior| {
            behavior.attention.mask_element =
                |ragged, mask, query, j| at(ragged, mask, query, query.h % ragged.kv_heads, j);
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-planes-interleaved",
        "The planes of an attn_mask of rank 3 are taken as the innermost or middle axis: its axes are heads, rows, \
         columns.",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| match mask.planes {
                Some(planes) => {
                    let row = (ragged.seqstarts[query.b] + query.i) * planes as i64 + query.h as i64;
                    Some(row * mask.width as i64 + ragged.kvstarts[query.b] + j)
                }
                None => Some(element(ragged, mask, query, j)),
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-columns-from-zero",
        "Every sequence reads attn_mask from column 0 on: its columns begin at kvstarts[b].",
        |behavior| {
            behavior.attention.mask_element =
                |ragged, mask, query, j| Some(element(ragged, mask, query, j) - ragged.kvstarts[query.b]);
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-columns-at-seqstarts",
        "Sequence b reads attn_mask from column seqstarts[b] on: its columns begin at kvstarts[b].",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                let moved = ragged.seqstarts[query.b] - ragged.kvstarts[query.b];
                Some(element(ragged, mask, query, j) + moved)
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-columns-at-end",
        "The columns of attn_mask are counted from its last one: padding is behind, they begin at kvstarts[b].",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                Some(element(ragged, mask, query, j) + mask.width as i64 - ragged.total_keys())
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-rows-from-zero",
        "Every sequence reads attn_mask from row 0 on: its rows begin at seqstarts[b].",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                Some(element(ragged, mask, query, j) - ragged.seqstarts[query.b] * mask.width as i64)
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-rows-at-kvstarts",
        "Sequence b reads attn_mask from row kvstarts[b] on: its rows begin at seqstarts[b].",
        |behavior| {
            behavior.attention.mask_element =
                |ragged, mask, query, j| row_of(ragged, mask, query, j, ragged.kvstarts[query.b] + query.i)
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-rows-by-position",
        "The row of attn_mask is moved by the number of past keys: it has rows for current tokens alone.",
        |behavior| {
            behavior.attention.mask_element =
                |ragged, mask, query, j| row_of(ragged, mask, query, j, ragged.seqstarts[query.b] + query.position())
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-first-row-for-all",
        "All queries of a sequence read the first row of its block of attn_mask: each has its own.",
        |behavior| {
            behavior.attention.mask_element =
                |ragged, mask, query, j| row_of(ragged, mask, query, j, ragged.seqstarts[query.b])
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-columns-of-padded-sequences",
        "Sequence b reads attn_mask from column b * max_kvlen on: its columns begin at kvstarts[b].",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                let moved = query.b as i64 * ragged.max_kvlen - ragged.kvstarts[query.b];
                Some(element(ragged, mask, query, j) + moved)
            }
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-block-at-corner",
        "Every sequence reads attn_mask from row 0 and column 0 on: its block begins at seqstarts[b] and kvstarts[b].",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                let before = ragged.seqstarts[query.b] * mask.width as i64 + ragged.kvstarts[query.b];
                Some(element(ragged, mask, query, j) - before)
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask.width",
        "mask-stride-of-keys",
        "A row of attn_mask is taken as kvstarts[B] columns long: it has W, which may be more.",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                let narrow = MaskShape { width: ragged.total_keys() as usize, ..*mask };
                Some(element(ragged, &narrow, query, j))
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask.width",
        "mask-stride-padded-to-16",
        "A row of attn_mask is taken as long as kvstarts[B] rounded up to a multiple of 16: it has W columns.",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                let padded = MaskShape { width: (ragged.total_keys() as usize).next_multiple_of(16), ..*mask };
                Some(element(ragged, &padded, query, j))
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-stride-of-own-keys",
        "A row of attn_mask is taken as long as its sequence has keys: it has W columns, for those of all sequences.",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                let row = plane_of(mask, query) * mask.rows as i64 + ragged.seqstarts[query.b] + query.i;
                Some(row * query.m + ragged.kvstarts[query.b] + j)
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-stride-and-columns-of-own-keys",
        "attn_mask is read as if its columns were the keys of one sequence: a row has W columns, and those of sequence b begin at kvstarts[b].",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                let row = plane_of(mask, query) * mask.rows as i64 + ragged.seqstarts[query.b] + query.i;
                Some(row * query.m + j)
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-of-each-sequence-alone",
        "attn_mask is read as if it were that of one sequence, of n rows and m columns: sequence b has the block that begins at seqstarts[b] and kvstarts[b], in rows of W columns.",
        |behavior| {
            behavior.attention.mask_element =
                |_, mask, query, j| Some((plane_of(mask, query) * query.n + query.i) * query.m + j);
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-stride-of-max-kvlen",
        "A row of attn_mask is taken as max_kvlen columns long, of its sequence alone: it has W, and the columns of sequence b begin at kvstarts[b].",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                let row = plane_of(mask, query) * mask.rows as i64 + ragged.seqstarts[query.b] + query.i;
                Some(row * ragged.max_kvlen + j)
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-blocks-one-behind-the-other",
        "The blocks of attn_mask are taken as packed, one behind the other: they lie on the diagonal of rows of W columns.",
        |behavior| {
            behavior.attention.mask_element = |ragged, _, query, j| {
                let before: i64 = (0..query.b).map(|b| ragged.seqlen(b) * ragged.kvlen(b)).sum();
                Some(before + query.i * query.m + j)
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-transposed",
        "attn_mask is read as keys by queries: its rows are queries.",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                let (row, column) = (ragged.seqstarts[query.b] + query.i, ragged.kvstarts[query.b] + j);
                Some((plane_of(mask, query) * mask.width as i64 + column) * mask.rows as i64 + row)
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask.width",
        "mask-planes-of-keys",
        "A plane of attn_mask is taken as long as if it had no padding: it has W columns in each row.",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                let narrow = plane_of(mask, query) * mask.rows as i64 * (mask.width as i64 - ragged.total_keys());
                Some(element(ragged, mask, query, j) - narrow)
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-planes-of-own-queries",
        "A plane of attn_mask is taken as having the rows of one sequence: it has those of all queries.",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                let row = plane_of(mask, query) * query.n + query.i;
                Some(row * mask.width as i64 + ragged.kvstarts[query.b] + j)
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-one-column-further",
        "attn_mask is read one column further: key j has column kvstarts[b] + j.",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| Some(element(ragged, mask, query, j) + 1);
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-one-column-before",
        "attn_mask is read one column before: key j has column kvstarts[b] + j.",
        |behavior| {
            behavior.attention.mask_element =
                |ragged, mask, query, j| Some(element(ragged, mask, query, j) - 1).filter(|&element| element >= 0);
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-planes-reversed",
        "The planes of an attn_mask of rank 3 are taken in reverse order: plane h is that of query head h.",
        |behavior| {
            behavior.attention.mask_element =
                |ragged, mask, query, j| at(ragged, mask, query, ragged.num_heads - 1 - query.h, j);
        },
    ),
    Mistake::of_attention("attn-mask", "mask-added-twice", "attn_mask is added twice.", |behavior| {
        behavior.attention.score =
            |terms| Terms { attn_mask: terms.attn_mask.map(|mask| 2.0 * mask), ..*terms }.score();
    }),
    Mistake::of_attention(
        "weights.hidden",
        "hidden-scores-not-replaced",
        "-inf is added to a score that is NaN or infinite, which gives NaN: a hidden key has score -inf, whatever its \
         inner product is.",
        |behavior| behavior.attention.score = added,
    ),
    Mistake::of_attention(
        "weights.hidden",
        "hidden-values-multiplied",
        "Values of hidden keys are multiplied with their weight 0, which gives NaN for NaN and infinity: leave them \
         out.",
        |behavior| behavior.attention.adds_hidden_values = true,
    ),
    Mistake::of_attention(
        "weights.hidden",
        "hidden-keys-count",
        "NaN and infinity reach queries from which a mask hides them: a hidden key's score is -inf whatever its inner \
         product is, and its value is left out.",
        |behavior| {
            behavior.attention.score = added;
            behavior.attention.adds_hidden_values = true;
        },
    ),
];

/// Whether a sequence has the causal mask, as the specification has it.
fn causal(ragged: &Ragged, b: usize) -> bool {
    ragged.is_causal && ragged.seqlen(b) > 1 && b as i128 >= i128::from(ragged.decoding_batches)
}

/// What a mask adds, but for -inf.
fn finite(mask: Option<f64>) -> f64 {
    mask.filter(|&mask| mask != f64::NEG_INFINITY).unwrap_or(0.0)
}

/// A mask that hides what it hides, and adds nothing else.
fn hidden(mask: Option<f64>) -> Option<f64> {
    mask.filter(|&mask| mask == f64::NEG_INFINITY)
}

/// A mask that shows a key or hides it.
fn shown(is_shown: bool) -> f64 {
    if is_shown { 0.0 } else { f64::NEG_INFINITY }
}

/// The score where masks are added whatever they are.
fn added(terms: &Terms) -> f64 {
    terms.masks().fold(terms.product * terms.factor, |score, mask| score + mask)
}

/// The plane of a query head; 0 where a mask has rank 2.
fn plane_of(mask: &MaskShape, query: &Query) -> i64 {
    mask.planes.map_or(0, |_| query.h as i64)
}

/// The number of the mask's element for the key at position `j`.
fn element(ragged: &Ragged, mask: &MaskShape, query: &Query, j: i64) -> i64 {
    let row = plane_of(mask, query) * mask.rows as i64 + ragged.seqstarts[query.b] + query.i;
    row * mask.width as i64 + ragged.kvstarts[query.b] + j
}

/// The same in another plane of a mask of rank 3.
fn at(ragged: &Ragged, mask: &MaskShape, query: &Query, plane: usize, j: i64) -> Option<i64> {
    Some(element(ragged, mask, &Query { h: plane, ..*query }, j))
}

/// The same in another row.
fn row_of(ragged: &Ragged, mask: &MaskShape, query: &Query, j: i64, row: i64) -> Option<i64> {
    let own = ragged.seqstarts[query.b] + query.i;
    Some(element(ragged, mask, query, j) + (row - own) * mask.width as i64)
}
