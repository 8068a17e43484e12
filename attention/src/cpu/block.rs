//! Query rows that share a key head, over one block of keys: what all attention is made of.
//!
//! Whoever calls this decides which query rows are computed together and in which pieces, but the keys of a piece come
//! block by block, in order.

use std::ops::Range;

use super::call::{Call, QueryRow};
use super::generic::fold::Sums;
use super::generic::panel::Pack;
use super::generic::read_rows::Rows;
use super::generic::scores::Products;
use super::generic::softmax::{Block, HIDDEN, SUMS, Weights};
use super::generic::weigh::Values;
use super::scratch::LINE;
use super::source::Offsets;

/// Keys in a block, the first of which is key 0 of a sequence.
pub(super) const BLOCK: usize = 64;

const KEY: usize = 0;
const VALUE: usize = 1;

/// What query rows have summed over some keys: for each row a maximum, partial sums of weights and sums of values.
#[derive(Clone, Copy)]
pub(super) struct State {
    max: *mut f32,
    weights: *mut f32,
    values: *mut f32,
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
    /// The key head.
    pub(super) head: usize,
    pub(super) rows: &'a [QueryRow],
    /// Each row's elements as float32, `width` of them.
    pub(super) query: *const f32,
    /// What they have summed over the piece's keys before the block.
    pub(super) state: State,
}

/// Memory for one block of keys.
#[derive(Clone, Copy)]
pub(super) struct BlockMemory {
    panels: *mut f32,
    rows: *mut f32,
    room: *mut f32,
    weights: *mut f32,
    rescale: *mut f32,
}

impl BlockMemory {
    /// How much it takes for so many query rows at once.
    pub(super) fn len(call: &Call<'_>, queries: usize) -> usize {
        2 * BLOCK * call.width + Self::room_len(call) + queries * BLOCK + queries
    }

    /// The memory in [`len`](Self::len) numbers.
    pub(super) fn new(memory: *mut f32, call: &Call<'_>, queries: usize) -> Self {
        let rows = memory.wrapping_add(BLOCK * call.width);
        let room = rows.wrapping_add(BLOCK * call.width);
        let weights = room.wrapping_add(Self::room_len(call));
        Self { panels: memory, rows, room, weights, rescale: weights.wrapping_add(queries * BLOCK) }
    }

    fn room_len(call: &Call<'_>) -> usize {
        call.scale_lanes.groups().next_multiple_of(LINE) + LINE
    }
}

/// Adds one block of keys to what the query rows have summed. `offsets` are those of its `keys`, which begin with a
/// block and are not more than one.
///
/// # Safety
/// The instruction set is supported. The keys are rows of the sequence that the query rows belong to; queries, state
/// and memory are those of as many rows, and nobody else's.
pub(super) unsafe fn attend_block(
    call: &Call<'_>,
    queries: &Queries<'_>,
    keys: Range<usize>,
    offsets: &Offsets,
    memory: BlockMemory,
) {
    let Call { functions, width, .. } = *call;
    let Queries { head, rows, query, state } = *queries;
    let padded = keys.len().next_multiple_of(SUMS);
    let BlockMemory { panels, weights, rescale, .. } = memory;
    // SAFETY: see `# Safety`. `read` gives as many rows as there are keys, padded to whole registers.
    unsafe {
        let key_rows = read(call, KEY, head, offsets, keys.len(), memory);
        (functions.pack_keys)(&Pack { rows: &key_rows[..padded], width, panels });
        (functions.scores)(&Products {
            query,
            query_step: width,
            queries: rows.len(),
            head_dim: call.geometry.head_dim,
            panels,
            width,
            registers: padded / functions.lanes,
            scores: weights,
            scores_step: BLOCK,
        });
        let mut hidden = false;
        for (r, row) in rows.iter().enumerate() {
            let weights = softmax(call, row, &keys, weights.add(r * BLOCK), state.row(r));
            *rescale.add(r) = weights.rescale;
            hidden |= weights.hidden;
        }
        let value_rows = read(call, VALUE, head, offsets, keys.len(), memory);
        let value_rows = &value_rows[..keys.len()];
        if hidden {
            for r in 0..rows.len() {
                weigh_seen(call, value_rows, weights.add(r * BLOCK), *rescale.add(r), state.row(r));
            }
        } else {
            (functions.weigh)(&Values {
                weights,
                weights_step: BLOCK,
                queries: rows.len(),
                rows: value_rows,
                width,
                rescale,
                sums: state.values,
            });
        }
    }
}

/// The rows of a block's keys or values as float32: where they are, or read into memory. The last one is repeated up to
/// a whole number of registers.
///
/// # Safety
/// As for [`attend_block`].
unsafe fn read(
    call: &Call<'_>,
    kv: usize,
    head: usize,
    offsets: &Offsets,
    len: usize,
    memory: BlockMemory,
) -> [*const f32; BLOCK] {
    let (from, scale) = call.source.head(kv, head);
    let mut rows = [std::ptr::null(); BLOCK];
    if call.in_place {
        for (row, &offset) in rows.iter_mut().zip(&offsets.cache[..len]) {
            *row = from.wrapping_add(offset).cast();
        }
    } else {
        // SAFETY: see `# Safety`: the rows are inside of the tensors, and the memory has BLOCK rows of whole registers.
        unsafe {
            (call.functions.read_rows)(&Rows {
                from,
                offsets: &offsets.cache[..len],
                scale,
                scale_offsets: &offsets.scale[..len],
                lanes: &call.scale_lanes,
                room: memory.room,
                len: call.geometry.head_dim,
                to: memory.rows,
                to_step: call.width,
            });
        }
        for (i, row) in rows[..len].iter_mut().enumerate() {
            *row = memory.rows.wrapping_add(i * call.width);
        }
    }
    let last = rows[len - 1];
    rows[len..].fill(last);
    rows
}

/// The weights of one query row in place of its products.
///
/// # Safety
/// As for [`attend_block`].
unsafe fn softmax(call: &Call<'_>, row: &QueryRow, keys: &Range<usize>, scores: *mut f32, state: State) -> Weights {
    let visible = row.visible.saturating_sub(keys.start).min(keys.len());
    // SAFETY: see `# Safety`.
    unsafe {
        (call.functions.softmax)(&Block {
            scores,
            len: keys.len().next_multiple_of(SUMS),
            keys: keys.len(),
            visible,
            factor: call.factor,
            mask: call.mask_from(row, keys.start),
            slope: row.slope,
            distance: (keys.start as i64 - row.position) as f32,
            max: state.max,
            sums: state.weights,
        })
    }
}

/// Adds the weighted values of the keys that one query row sees.
///
/// # Safety
/// As for [`attend_block`].
unsafe fn weigh_seen(call: &Call<'_>, rows: &[*const f32], weights: *mut f32, rescale: f32, state: State) {
    let (mut seen_weights, mut seen_rows) = ([0.0; BLOCK], [std::ptr::null(); BLOCK]);
    let mut seen = 0;
    // SAFETY: see `# Safety`: there is a weight for each row.
    unsafe {
        for (t, &row) in rows.iter().enumerate() {
            let weight = *weights.add(t);
            if weight.to_bits() != HIDDEN.to_bits() {
                (seen_weights[seen], seen_rows[seen]) = (weight, row);
                seen += 1;
            }
        }
        (call.functions.weigh)(&Values {
            weights: seen_weights.as_ptr(),
            weights_step: BLOCK,
            queries: 1,
            rows: &seen_rows[..seen],
            width: call.width,
            rescale: &rescale,
            sums: state.values,
        });
    }
}
