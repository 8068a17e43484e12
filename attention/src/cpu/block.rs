//! Query rows that share a key head, over one block of keys: what all attention is made of.
//!
//! Whoever calls this decides which query rows are computed together and in which pieces, but the keys of a piece come
//! block by block, in order.

use std::ops::Range;

use super::block_rows::{BlockMemory, BlockRows, KEY, Queries, VALUE, pv_visible_rows};
use super::generic::panel::{PANEL, Pack};
use super::generic::pv_rows::WeightedRows;
use super::generic::qk_panels::PanelScores;
use super::generic::qk_rows::RowScores;
use super::generic::read_rows::Read;
use super::generic::rows::BLOCK;
use super::generic::softmax::{Block, SUMS};
use super::integers::{PackedKeys, add_integer_values};
use super::operands::Call;

/// Rows of values that are read into memory at once: they stay in the first-level cache until they are added.
const READ_ROWS: usize = 32;

/// Adds one block of keys to what the query rows have summed. The rows are those of its `keys`, which begin with a
/// block and are not more than one; those of `next` are read next.
///
/// # Safety
/// The instruction set is supported. The keys are those of the sequence that the query rows belong to; queries, state
/// and memory are those of as many rows, and nobody else's.
pub(super) unsafe fn attend_block(
    call: &Call<'_>,
    queries: &Queries<'_>,
    keys: Range<usize>,
    [here, next]: [BlockRows<'_>; 2],
    memory: BlockMemory,
) {
    let Call { functions, width, .. } = *call;
    let Queries { rows, query, state } = *queries;
    let padded = keys.len().next_multiple_of(SUMS);
    let BlockMemory { panel, weights, rescale, .. } = memory;
    // More queries use a value more than once.
    let codes = call.codes.filter(|_| rows.len() <= 4);
    let at_once = if call.loader.is_some() && codes.is_none() { call.loaded_at_once } else { BLOCK };
    // SAFETY: see `# Safety`. The rows from `keys.len()` on are as the last, or of any numbers.
    unsafe {
        let rows_of = |kv: usize, tokens: Range<usize>| match codes {
            Some(_) => here.codes(call, kv, tokens, next, memory),
            None => here.floats(call, kv, tokens, next, memory),
        };
        let qk_rows = codes.and_then(|codes| codes.qk_rows).or(call.qk_rows);
        match qk_rows.filter(|_| call.integers.is_none()) {
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
            None => qk_packed(call, queries, padded, [here, next], memory),
        }
        let hidden = (functions.softmax)(&Block {
            rows,
            keys: keys.clone(),
            scores: weights,
            factor: call.factor,
            max: state.max,
            sums: state.weights,
            rescale,
        })
        .any;
        if let Some(integers) = call.integers.filter(|integers| integers.scales_weights) {
            return add_integer_values(call, &integers, queries, keys.len(), hidden, [here, next], memory);
        }
        let mut rescale = rescale.cast_const();
        let in_place = codes.is_some() || call.pv_in_place;
        let pv_in_place = codes.map_or(functions.pv_rows_in_place, |codes| codes.pv_rows);
        let at_once = if in_place { at_once } else { READ_ROWS };
        for first in (0..keys.len()).step_by(at_once) {
            let some = first..keys.len().min(first + at_once);
            let mut values = rows_of(VALUE, some.clone());
            if !in_place {
                (functions.read_rows)(&Read { rows: values, to: panel, to_step: width });
                (values.from, values.offsets) = (panel.cast_const().cast(), &call.scratch_offsets[..some.len()]);
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
            match hidden {
                false => pv(&values),
                true => pv_visible_rows(pv, &values, weights.add(first), memory.ones),
            }
            rescale = memory.ones;
        }
    }
}

/// QK scores of queries and so many keys, in whole registers: of integer codes, or of floats panel by panel.
///
/// # Safety
/// The conditions are those of [`attend_block`].
pub(super) unsafe fn qk_packed(
    call: &Call<'_>,
    &Queries { rows, query, .. }: &Queries<'_>,
    keys: usize,
    [here, next]: [BlockRows<'_>; 2],
    memory: BlockMemory,
) {
    let Call { functions, width, .. } = *call;
    let BlockMemory { panel, weights, .. } = memory;
    let head_dim = call.geometry.head_dim;
    // SAFETY: see `# Safety`.
    unsafe {
        if let Some(integers) = &call.integers {
            let packed = PackedKeys::new(call, integers, keys, rows.len(), [here, next], memory);
            return packed.scores(call, integers, (query, rows.len()), [0, keys], weights);
        }
        for first in (0..keys).step_by(PANEL) {
            let keys = PANEL.min(keys - first);
            let panel_rows = here.floats(call, KEY, first..first + PANEL, next, memory);
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
