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
use super::generic::read_rows::ReadInto;
use super::generic::rows::{BLOCK, Prefetch};
use super::generic::softmax::{SUMS, ScoreBlock};
use super::integers::{PackedKeys, add_integer_values};

/// Rows of values that are read into memory at once: they stay in the first-level cache until they are added.
const READ_ROWS: usize = 32;

/// Adds one block of keys to what the query rows have summed: the rows `here` of `keys`, which start with a block of
/// the sequence and are at most a block. The rows `next` are read after them.
///
/// # Safety
/// The instruction set is supported. The keys belong to the sequence of the query rows. Queries, state and memory have
/// room for these rows, and nobody else uses them.
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
    let in_registers = [KEY, VALUE].map(|kv| args.reads[kv].in_registers(rows.len()));
    let at_once = |kv: usize| match args.reads[kv].loaded() {
        Some(loaded) if in_registers[kv].is_none() => loaded.at_once,
        _ => BLOCK,
    };
    // SAFETY: see `# Safety`. The rows from `keys.len()` on are as the last, or of any numbers.
    unsafe {
        let rows_of = |kv: usize, tokens: Range<usize>| match in_registers[kv] {
            Some(_) => here.codes(args, kv, tokens, next, memory),
            None => here.floats(args, kv, tokens, next, memory),
        };
        let qk_rows = in_registers[KEY].and_then(|codes| codes.qk_rows).or(functions.qk_rows);
        match qk_rows.filter(|_| args.reads[KEY].integers().is_none()) {
            Some(qk_rows) => {
                let at_once = at_once(KEY);
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
        if let Some(integers) = args.reads[VALUE].integers() {
            return add_integer_values(args, integers, queries, keys.len(), masked, [here, next], memory);
        }
        let mut rescale = rescale.cast_const();
        let in_place = in_registers[VALUE].map(|codes| codes.pv_rows).or(functions.pv_rows_in_place);
        let at_once = in_place.map_or(READ_ROWS, |_| at_once(VALUE));
        for first in (0..keys.len()).step_by(at_once) {
            let some = first..keys.len().min(first + at_once);
            let mut values = rows_of(VALUE, some.clone());
            if in_place.is_none() {
                (functions.read_rows)(&ReadInto { rows: values, to: panel, to_step: width });
                (values.from, values.offsets) = (panel.cast_const().cast(), &args.scratch_offsets[..some.len()]);
                (values.scale_offsets, values.prefetch) = (values.offsets, Prefetch::NONE);
            }
            let values = WeightedRows {
                weights: weights.add(first),
                queries: rows.len(),
                rows: values,
                width,
                rescale,
                sums: state.values,
                group: width,
                group_step: 0,
            };
            let pv = in_place.unwrap_or(functions.pv_rows);
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
/// The conditions of [`attend_decode`] hold.
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
        if let Some(integers) = args.reads[KEY].integers() {
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
