//! Mistakes of attn_mask: which of its elements is that of a query and a key.

use crate::mistakes::mistake::Mistake;
use crate::oracle::attention::ragged::{MaskShape, Query, Ragged};

pub(in crate::mistakes) const MISTAKES: &[Mistake] = &[
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
        "attn_mask is read as if its columns were the keys of one sequence: a row has W columns, and those of sequence \
         b begin at kvstarts[b].",
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
        "attn_mask is read as if it were that of one sequence, of n rows and m columns: sequence b has the block that \
         begins at seqstarts[b] and kvstarts[b], in rows of W columns.",
        |behavior| {
            behavior.attention.mask_element =
                |_, mask, query, j| Some((plane_of(mask, query) * query.n + query.i) * query.m + j);
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-stride-of-max-kvlen",
        "A row of attn_mask is taken as max_kvlen columns long, of its sequence alone: it has W, and the columns of \
         sequence b begin at kvstarts[b].",
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
        "The blocks of attn_mask are taken as packed, one behind the other: they lie on the diagonal of rows of W \
         columns.",
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
];

/// The plane of a query head; 0 where a mask has rank 2.
fn plane_of(mask: &MaskShape, query: &Query) -> i64 {
    mask.planes.map_or(0, |_| query.h as i64)
}

/// The number of the mask's element for the key at position `j`.
pub(super) fn element(ragged: &Ragged, mask: &MaskShape, query: &Query, j: i64) -> i64 {
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
