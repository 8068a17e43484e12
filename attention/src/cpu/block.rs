//! Query rows that share a key head, over one block of keys: what all attention is made of.
//!
//! Whoever calls this decides which query rows are computed together and in which pieces, but the keys of a piece come
//! block by block, in order.

use std::ops::Range;

use super::call::Call;
use super::dispatch::WeighFunction;
use super::generic::fold::Sums;
use super::generic::panel::{BLOCK, PANEL, Pack};
use super::generic::query_row::QueryRow;
use super::generic::read_rows::Read;
use super::generic::rows::{Next, Rows};
use super::generic::score_rows::RowProducts;
use super::generic::scores::Products;
use super::generic::softmax::{Block, HIDDEN, SUMS};
use super::generic::weigh::Values;
use super::scratch::LINE;
use super::source::Offsets;

pub(super) const KEY: usize = 0;
pub(super) const VALUE: usize = 1;

/// What query rows have summed over some keys: for each row a maximum, partial sums of weights and sums of values.
#[derive(Clone, Copy)]
pub(super) struct State {
    pub(super) max: *mut f32,
    pub(super) weights: *mut f32,
    pub(super) values: *mut f32,
    width: usize,
}

impl State {
    /// The memory that the state of so many rows takes.
    pub(super) fn len(rows: usize, width: usize) -> usize {
        rows.next_multiple_of(LINE) + rows * (SUMS + width)
    }

    /// The state of so many rows in [`len`](Self::len) numbers at `memory`.
    pub(super) fn new(memory: *mut f32, rows: usize, width: usize) -> Self {
        let weights = memory.wrapping_add(rows.next_multiple_of(LINE));
        Self { max: memory, weights, values: weights.wrapping_add(rows * SUMS), width }
    }

    /// That of the rows from `row` on.
    pub(super) fn row(self, row: usize) -> Self {
        let Self { max, weights, values, width } = self;
        Self {
            max: max.wrapping_add(row),
            weights: weights.wrapping_add(row * SUMS),
            values: values.wrapping_add(row * width),
            width,
        }
    }

    /// Nothing seen yet.
    ///
    /// # Safety
    /// The memory is that of so many rows, and nobody else's.
    pub(super) unsafe fn clear(self, rows: usize) {
        // SAFETY: see `# Safety`.
        unsafe {
            std::slice::from_raw_parts_mut(self.max, rows).fill(f32::NEG_INFINITY);
            self.weights.write_bytes(0, rows * SUMS);
            self.values.write_bytes(0, rows * self.width);
        }
    }

    /// The sums of the first row.
    pub(super) fn sums(self) -> Sums {
        Sums { max: self.max, weights: self.weights, values: self.values, width: self.width }
    }
}

/// Query rows that share a key head.
pub(super) struct Queries<'a> {
    pub(super) rows: &'a [QueryRow],
    /// Each row's elements as float32, `width` of them.
    pub(super) query: *const f32,
    /// What they have summed over the piece's keys before the block.
    pub(super) state: State,
}

/// Rows of values that are read into memory at once: they stay in the first-level cache until they are added.
const READ_ROWS: usize = 32;

/// Memory for one block of keys.
#[derive(Clone, Copy)]
pub(super) struct BlockMemory {
    /// A panel of keys, and then rows of values or panels of them.
    pub(super) panel: *mut f32,
    /// Rows of values.
    pub(super) rows: *mut f32,
    pub(super) room: *mut f32,
    pub(super) weights: *mut f32,
    pub(super) rescale: *mut f32,
    ones: *const f32,
}

impl BlockMemory {
    /// How much it takes for so many query rows at once.
    pub(super) fn len(call: &Call<'_>, queries: usize) -> usize {
        Self::panel_len(call) + BLOCK * call.width + Self::room_len(call) + queries * (BLOCK + 2)
    }

    /// The memory in [`len`](Self::len) numbers.
    ///
    /// # Safety
    /// They can be written, and are nobody else's.
    pub(super) unsafe fn new(memory: *mut f32, call: &Call<'_>, queries: usize) -> Self {
        let rows = memory.wrapping_add(Self::panel_len(call));
        let room = rows.wrapping_add(BLOCK * call.width);
        let weights = room.wrapping_add(Self::room_len(call));
        let rescale = weights.wrapping_add(queries * BLOCK);
        let ones = rescale.wrapping_add(queries);
        // SAFETY: the last `queries` numbers are part of the memory: see `# Safety`.
        unsafe { std::slice::from_raw_parts_mut(ones, queries).fill(1.0) }
        Self { panel: memory, rows, room, weights, rescale, ones }
    }

    fn panel_len(call: &Call<'_>) -> usize {
        BLOCK * call.width
    }

    /// For each scale of a row those of all rows.
    fn room_len(call: &Call<'_>) -> usize {
        call.groups.count.next_multiple_of(LINE) * PANEL
    }
}

/// The rows of a block of keys, of one head.
#[derive(Clone, Copy)]
pub(super) struct KeyRows<'a> {
    /// The key head.
    pub(super) head: usize,
    /// The rows of the block's tokens.
    pub(super) offsets: &'a Offsets,
}

impl<'a> KeyRows<'a> {
    /// Some rows, of keys or of values, and what is read in place of them next.
    pub(super) fn rows<'b>(self, call: &'b Call<'_>, kv: usize, rows: Range<usize>, next: KeyRows<'b>) -> Rows<'b>
    where
        'a: 'b,
    {
        let (from, scale) = call.source.head(kv, self.head);
        Rows {
            from,
            offsets: &self.offsets.cache[rows.clone()],
            scale,
            scale_offsets: &self.offsets.scale[rows.clone()],
            len: call.geometry.head_dim,
            groups: &call.groups,
            next: next.next(call, kv, rows.start),
        }
    }

    /// The rows from `first` on, as those that are read next.
    fn next<'b>(self, call: &Call<'_>, kv: usize, first: usize) -> Next<'b>
    where
        'a: 'b,
    {
        let (from, scale) = call.source.head(kv, self.head);
        Next { from, offsets: &self.offsets.cache[first..], scale, scale_offsets: &self.offsets.scale[first..] }
    }
}

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
    [here, next]: [KeyRows<'_>; 2],
    memory: BlockMemory,
) {
    let Call { functions, width, .. } = *call;
    let Queries { rows, query, state } = *queries;
    let padded = keys.len().next_multiple_of(SUMS);
    let BlockMemory { panel, weights, rescale, .. } = memory;
    // Codes are dequantized for each tile: these numbers of rows are one. Floats are cheaper to read again than to pack.
    let is_float = call.groups.count == 0 && call.score_rows.is_some();
    let few = rows.len() <= 4 || rows.len() == 8 || is_float;
    // SAFETY: see `# Safety`. The rows from `keys.len()` on are as the last.
    unsafe {
        if let Some(score_rows) = call.score_rows
            && few
        {
            score_rows(&RowProducts {
                query,
                query_step: width,
                queries: rows.len(),
                rows: here.rows(call, KEY, 0..BLOCK, next),
                keys: padded,
                scores: weights,
            });
        } else {
            score_panels(call, queries, padded, [here, next], memory);
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
        let mut rescale = rescale.cast_const();
        let in_place = call.weigh_in_place && (call.in_place || few);
        let at_once = if in_place { BLOCK } else { READ_ROWS };
        for first in (0..keys.len()).step_by(at_once) {
            let some = first..keys.len().min(first + at_once);
            let mut values = here.rows(call, VALUE, some.clone(), next);
            if !in_place {
                (functions.read)(&Read { rows: values, to: panel, to_step: width });
                (values.from, values.offsets) = (panel.cast_const().cast(), &call.scratch_offsets[..some.len()]);
            }
            let values = Values {
                weights: weights.add(first),
                queries: rows.len(),
                rows: values,
                width,
                prefetch: in_place,
                rescale,
                sums: state.values,
            };
            let weigh = if in_place { functions.weigh_in_place } else { functions.weigh };
            match hidden {
                false => weigh(&values),
                true => weigh_seen(weigh, &values),
            }
            rescale = memory.ones;
        }
    }
}

/// The products of queries and so many keys, in whole registers, panel by panel.
///
/// # Safety
/// As for [`attend_block`].
unsafe fn score_panels(
    call: &Call<'_>,
    &Queries { rows, query, .. }: &Queries<'_>,
    keys: usize,
    [here, next]: [KeyRows<'_>; 2],
    BlockMemory { panel, room, weights, .. }: BlockMemory,
) {
    let Call { functions, width, .. } = *call;
    let head_dim = call.geometry.head_dim;
    // SAFETY: see `# Safety`.
    unsafe {
        for first in (0..keys).step_by(PANEL) {
            let keys = PANEL.min(keys - first);
            (functions.pack)(&Pack { rows: here.rows(call, KEY, first..first + PANEL, next), keys, panel, room });
            (functions.scores)(&Products {
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

/// Adds weighted values, for each query those of the keys that it sees.
///
/// # Safety
/// As for [`attend_block`].
unsafe fn weigh_seen(weigh: WeighFunction, values: &Values<'_>) {
    for r in 0..values.queries {
        let (mut weights, mut offsets, mut scale_offsets) = ([0.0; BLOCK], [0; BLOCK], [0; BLOCK]);
        let mut seen = 0;
        // SAFETY: see `# Safety`: each query has a weight for each row.
        unsafe {
            for (t, (&offset, &scale)) in values.rows.offsets.iter().zip(values.rows.scale_offsets).enumerate() {
                let weight = *values.weights.add(r * BLOCK + t);
                if weight.to_bits() != HIDDEN.to_bits() {
                    (weights[seen], offsets[seen], scale_offsets[seen]) = (weight, offset, scale);
                    seen += 1;
                }
            }
            weigh(&Values {
                weights: weights.as_ptr(),
                queries: 1,
                rows: Rows { offsets: &offsets[..seen], scale_offsets: &scale_offsets[..seen], ..values.rows },
                prefetch: false,
                rescale: values.rescale.add(r),
                sums: values.sums.add(r * values.width),
                ..*values
            });
        }
    }
}
