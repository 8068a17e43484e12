//! Many query rows that share a key head, over one block of keys: prompts, of which a block of keys serves so many rows
//! that its values are worth packing, too.
//!
//! The sums are those of [`attend_block`](super::block::attend_block), to the bit.

use std::ops::Range;

use super::block::{BlockMemory, BlockRows, KEY, Queries, VALUE};
use super::generic::panel::{PANEL, Pack};
use super::generic::pv_panels::{PackRows, WeightedPanels};
use super::generic::qk_panels::PanelScores;
use super::generic::read_rows::Read;
use super::generic::rows::{BLOCK, Next, Rows};
use super::generic::softmax::{Block, SUMS};
use super::generic::softmax_rows::ManyRows;
use super::operands::Call;

/// From so many query rows on, packing values is worth it.
pub(super) const MANY_ROWS: usize = 16;

/// Adds one block of keys to what the query rows have summed.
///
/// # Safety
/// The conditions are those of [`attend_block`](super::block::attend_block).
pub(super) unsafe fn attend_many_rows(
    call: &Call<'_>,
    queries: &Queries<'_>,
    keys: Range<usize>,
    [here, next]: [BlockRows<'_>; 2],
    memory: BlockMemory,
) {
    let Call { functions, width, .. } = *call;
    let BlockMemory { panel, weights, rescale, .. } = memory;
    let head_dim = call.geometry.head_dim;
    let padded = keys.len().next_multiple_of(SUMS);
    // A row sees no less than the one before it: the first ones may see nothing of the block.
    let blind = queries.rows.partition_point(|row| row.visible <= keys.start);
    let rows = &queries.rows[blind..];
    let (state, query) = (queries.state.row(blind), queries.query.wrapping_add(blind * width));
    let seen: Vec<usize> = rows.iter().map(|row| (row.visible - keys.start).min(keys.len())).collect();
    // SAFETY: see `# Safety`. The rows of keys from `keys.len()` on are as the last, or of any numbers.
    unsafe {
        for first in (0..padded).step_by(PANEL) {
            let keys = PANEL.min(padded - first);
            let panel_rows = here.floats(call, KEY, first..first + PANEL, next, memory);
            (functions.pack_keys)(&Pack { rows: panel_rows, keys, panel });
            // These queries see none of the keys.
            let without = seen.partition_point(|&seen| seen <= first);
            (functions.qk_panels)(&PanelScores {
                query: query.add(without * width),
                query_step: width,
                queries: rows.len() - without,
                head_dim,
                panel,
                keys,
                scores: weights.add(without * BLOCK + first),
            });
        }
        let (factor, max, sums) = (call.factor, state.max, state.weights);
        let hidden = if rows.iter().all(|row| row.mask.is_null() && row.slope == 0.0) {
            (functions.softmax_rows)(&ManyRows { scores: weights, seen: &seen, factor, max, sums, rescale })
        } else {
            let block = Block { rows, keys: keys.clone(), scores: weights, factor, max, sums, rescale };
            (functions.softmax)(&block).among_visible
        };
        let values = here.floats(call, VALUE, 0..keys.len(), next, memory);
        if call.in_place {
            let Rows { from, offsets, next, .. } = values;
            (functions.pack_values)(&PackRows { from, offsets, width, next, panels: panel });
        } else {
            (functions.read_rows)(&Read { rows: values, to: memory.rows, to_step: width });
            let (from, offsets) = (memory.rows.cast_const().cast(), &call.scratch_offsets[..keys.len()]);
            (functions.pack_values)(&PackRows { from, offsets, width, next: Next::NONE, panels: panel });
        }
        (functions.pv_panels)(&WeightedPanels {
            weights,
            seen: &seen,
            hidden,
            panels: panel,
            keys: keys.len(),
            width,
            rescale,
            sums: state.values,
        });
    }
}
