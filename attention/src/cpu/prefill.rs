//! Many query rows that share a key head, over one block of keys: prefill. A block of keys serves so many rows that its
//! values are worth packing, too.
//!
//! ```text
//! rows without a visible key of the block are left out, the first and the last ones
//! for each panel of 32 keys: pack the keys, scores = query rows x panel
//! weights = exp(scores - new maximum), a register of rows at once where there is neither mask nor
//!                                         ALiBi, nor a window that begins in the block
//! pack the values; sums = sums * exp(old maximum - new maximum) + weights x panels of values
//! ```
//!
//! Each sum has the same bits as in [`attend_decode`](super::decode::attend_decode).

use std::ops::Range;

use super::attention_args::AttentionArgs;
use super::block_rows::{BlockMemory, BlockRows, KEY, Queries, VALUE};
use super::generic::panel::{PANEL, Pack};
use super::generic::pv_panels::{PackRows, WeightedPanels};
use super::generic::qk_panels::PanelScores;
use super::generic::read_rows::ReadInto;
use super::generic::rows::{BLOCK, Prefetch};
use super::generic::softmax::{QueryRow, SUMS, ScoreBlock};
use super::generic::softmax_rows::ScoreRows;
use super::integers::PackedKeys;

/// Adds one block of keys to what the query rows have summed.
///
/// # Safety
/// The conditions of [`attend_decode`](super::decode::attend_decode) hold.
pub(super) unsafe fn attend_prefill(
    args: &AttentionArgs<'_>,
    queries: &Queries<'_>,
    keys: Range<usize>,
    [here, next]: [BlockRows<'_>; 2],
    memory: BlockMemory,
) {
    let AttentionArgs { functions, width, .. } = *args;
    let BlockMemory { panel, weights, rescale, .. } = memory;
    let head_dim = args.geometry.head_dim;
    let padded = keys.len().next_multiple_of(SUMS);
    // A row sees no less than the one before it, and a window hides no less from it: the first ones may see nothing of
    // the block yet, and the last ones nothing any more.
    let blind = queries.rows.partition_point(|row| row.visible <= keys.start);
    let past = queries.rows.partition_point(|row| row.hidden < keys.end);
    let rows = &queries.rows[blind..past];
    let (state, query) = (queries.state.row(blind), queries.query.wrapping_add(blind * width));
    let seen: Vec<usize> = rows.iter().map(|row| (row.visible - keys.start).min(keys.len())).collect();
    // SAFETY: see `# Safety`. The rows of keys from `keys.len()` on are as the last, or of any numbers.
    unsafe {
        let packed = args.reads[KEY]
            .integers()
            .map(|integers| (integers, PackedKeys::new(args, integers, padded, rows.len(), [here, next], memory)));
        for first in (0..padded).step_by(PANEL) {
            let keys = PANEL.min(padded - first);
            // These queries see none of the keys.
            let without = seen.partition_point(|&seen| seen <= first);
            let (query, queries) = (query.add(without * width), rows.len() - without);
            let scores = weights.add(without * BLOCK + first);
            if let Some((integers, packed)) = &packed {
                packed.scores(args, integers, (query, queries), [first, keys], weights.add(without * BLOCK));
                continue;
            }
            let panel_rows = here.floats(args, KEY, first..first + PANEL, next, memory);
            (functions.pack_keys)(&Pack { rows: panel_rows, keys, panel });
            (functions.qk_panels)(&PanelScores { query, query_step: width, queries, head_dim, panel, keys, scores });
        }
        let factor = args.soft_cap(weights, rows.len(), padded);
        let (max, sums) = (state.max, state.weights);
        let is_plain = |row: &QueryRow| row.mask.is_null() && row.slope == 0.0 && row.hidden <= keys.start;
        let masked = if rows.iter().all(is_plain) {
            (functions.softmax_rows)(&ScoreRows { scores: weights, seen: &seen, factor, max, sums, rescale })
        } else {
            let block = ScoreBlock { rows, keys: keys.clone(), scores: weights, factor, max, sums, rescale };
            (functions.softmax)(&block).among_visible
        };
        let panels = panel;
        let (mut group, mut scales) = (0, None);
        if let Some(integers) = args.reads[VALUE].integers() {
            (group, scales) = (integers.group, Some(here.group_scales(args, (VALUE, integers), padded, memory)));
            let rows = here.stored(args, VALUE, 0..keys.len(), next);
            (integers.functions.pack_values)(&PackRows { rows, width, group, panels });
        } else {
            let mut rows = here.floats(args, VALUE, 0..keys.len(), next, memory);
            let pack = functions.pack_values_in_place.unwrap_or_else(|| {
                (functions.read_rows)(&ReadInto { rows, to: memory.rows, to_step: width });
                (rows.from, rows.offsets) = (memory.rows.cast_const().cast(), &args.scratch_offsets[..keys.len()]);
                (rows.scale_offsets, rows.prefetch) = (rows.offsets, Prefetch::NONE);
                functions.pack_values
            });
            pack(&PackRows { rows, width, group, panels });
        }
        (functions.pv_panels)(&WeightedPanels {
            weights,
            seen: &seen,
            masked,
            panels,
            keys: keys.len(),
            width,
            group,
            scales,
            rescale,
            sums: state.values,
        });
    }
}
