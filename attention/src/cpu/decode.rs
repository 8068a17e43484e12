//! Few query rows that share a key head, over one block of keys: decoding.
//!
//! ```text
//! for each 64 keys or fewer:
//!     scores  = query rows x key rows             as floats, as codes, or panel by panel
//!     weights = exp(scores - new maximum)         raises the maximum, adds to the sums of weights
//!     sums    = sums * exp(old maximum - new maximum) + weights x value rows
//! ```
//!
//! The caller decides which query rows are computed together and in which KV splits, but the keys of a split come block
//! by block, in order.

use std::ops::Range;

use super::attention_args::AttentionArgs;
use super::block_rows::{BlockMemory, BlockRows, KEY, Queries, VALUE, pv_visible_rows};
use super::generic::panel::{PANEL, Pack};
use super::generic::pv_rows::WeightedRows;
use super::generic::qk_panels::PanelScores;
use super::generic::qk_rows::RowScores;
use super::generic::read_rows::Read;
use super::generic::rows::BLOCK;
use super::generic::softmax::{SUMS, ScoreBlock};
use super::integers::{PackedKeys, add_integer_values};

/// Rows of values that are read into memory at once: they stay in the first-level cache until they are added.
const READ_ROWS: usize = 32;

/// Adds one block of keys to what the query rows have summed. The rows are those of its `keys`, which begin with a
/// block and are not more than one; those of `next` are read next.
///
/// # Safety
/// The instruction set is supported. The keys are those of the sequence that the query rows belong to; queries, state
/// and memory are those of as many rows, and nobody else's.
pub(super) unsafe fn attend_decode(
    args: &AttentionArgs<'_>,
    queries: &Queries<'_>,
    keys: Range<usize>,
    [here, next]: [BlockRows<'_>; 2],
    memory: BlockMemory,
) {
    let AttentionArgs { functions, width, .. } = *args;
    let Queries { rows, query, state } = *queries;
    let padded = keys.len().next_multiple_of(SUMS);
    let BlockMemory { panel, weights, rescale, .. } = memory;
    // More queries use a value more than once.
    let codes = args.codes.filter(|_| rows.len() <= 4);
    let at_once = if args.loader.is_some() && codes.is_none() { args.loaded_at_once } else { BLOCK };
    // SAFETY: see `# Safety`. The rows from `keys.len()` on are as the last, or of any numbers.
    unsafe {
        let rows_of = |kv: usize, tokens: Range<usize>| match codes {
            Some(_) => here.codes(args, kv, tokens, next, memory),
            None => here.floats(args, kv, tokens, next, memory),
        };
        let qk_rows = codes.and_then(|codes| codes.qk_rows).or(args.qk_rows);
        match qk_rows.filter(|_| args.integers.is_none()) {
            Some(qk_rows) => {
                for first in (0..padded).step_by(at_once) {
                    let some = first..padded.min(first + at_once);
                    qk_rows(&RowScores {
                        query,
                        query_step: width,
                        queries: rows.len(),
                        keys: some.len(),
                        rows: rows_of(KEY, some),
                        scores: weights.add(first),
                    });
                }
            }
            None => qk_packed(args, queries, padded, [here, next], memory),
        }
        let masked = (functions.softmax)(&ScoreBlock {
            rows,
            keys: keys.clone(),
            scores: weights,
            factor: args.soft_cap(weights, rows.len(), padded),
            max: state.max,
            sums: state.weights,
            rescale,
        })
        .any;
        if let Some(integers) = args.integers.filter(|integers| integers.scales_weights) {
            return add_integer_values(args, &integers, queries, keys.len(), masked, [here, next], memory);
        }
        let mut rescale = rescale.cast_const();
        let in_place = codes.is_some() || args.pv_in_place;
        let pv_in_place = codes.map_or(functions.pv_rows_in_place, |codes| codes.pv_rows);
        let at_once = if in_place { at_once } else { READ_ROWS };
        for first in (0..keys.len()).step_by(at_once) {
            let some = first..keys.len().min(first + at_once);
            let mut values = rows_of(VALUE, some.clone());
            if !in_place {
                (functions.read_rows)(&Read { rows: values, to: panel, to_step: width });
                (values.from, values.offsets) = (panel.cast_const().cast(), &args.scratch_offsets[..some.len()]);
                values.scale_offsets = values.offsets;
            }
            let values = WeightedRows {
                weights: weights.add(first),
                queries: rows.len(),
                rows: values,
                width,
                prefetch: in_place,
                rescale,
                sums: state.values,
                group: width,
                group_step: 0,
            };
            let pv = if in_place { pv_in_place } else { functions.pv_rows };
            match masked {
                false => pv(&values),
                true => pv_visible_rows(pv, &values, weights.add(first), memory.ones),
            }
            rescale = memory.ones;
        }
    }
}

/// QK scores of queries and that many keys, in whole registers: of integer codes, or of floats panel by panel.
///
/// # Safety
/// The conditions are those of [`attend_decode`].
pub(super) unsafe fn qk_packed(
    args: &AttentionArgs<'_>,
    &Queries { rows, query, .. }: &Queries<'_>,
    keys: usize,
    [here, next]: [BlockRows<'_>; 2],
    memory: BlockMemory,
) {
    let AttentionArgs { functions, width, .. } = *args;
    let BlockMemory { panel, weights, .. } = memory;
    let head_dim = args.geometry.head_dim;
    // SAFETY: see `# Safety`.
    unsafe {
        if let Some(integers) = &args.integers {
            let packed = PackedKeys::new(args, integers, keys, rows.len(), [here, next], memory);
            return packed.scores(args, integers, (query, rows.len()), [0, keys], weights);
        }
        for first in (0..keys).step_by(PANEL) {
            let keys = PANEL.min(keys - first);
            let panel_rows = here.floats(args, KEY, first..first + PANEL, next, memory);
            (functions.pack_keys)(&Pack { rows: panel_rows, keys, panel });
            (functions.qk_panels)(&PanelScores {
                query,
                query_step: width,
                queries: rows.len(),
                head_dim,
                panel,
                keys,
                scores: weights.add(first),
            });
        }
    }
}
