//! Query rows that share a key head, over one block of keys: what all attention is made of.
//!
//! Whoever calls this decides which query rows are computed together and in which pieces, but the keys of a piece come
//! block by block, in order.

use std::ops::Range;

use kvcache_kernels::LoadedRows;

use super::dispatch::PvRowsFunction;
use super::generic::merge::Sums;
use super::generic::panel::{PANEL, Pack};
use super::generic::pv_rows::WeightedRows;
use super::generic::qk_panels::PanelScores;
use super::generic::qk_rows::RowScores;
use super::generic::query_row::QueryRow;
use super::generic::read_rows::Read;
use super::generic::rows::{BLOCK, Next, Rows};
use super::generic::softmax::{Block, HIDDEN, SUMS};
use super::operands::{Call, Scales};
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
    /// Rows of values as float32.
    pub(super) rows: *mut f32,
    /// Rows that are loaded from the cache, and their scales.
    loaded: *mut f32,
    scales: *mut f32,
    pub(super) weights: *mut f32,
    pub(super) rescale: *mut f32,
    ones: *const f32,
}

impl BlockMemory {
    /// How much it takes for so many query rows at once.
    pub(super) fn len(call: &Call<'_>, queries: usize) -> usize {
        2 * BLOCK * call.width + Self::loaded_len(call) + Self::scales_len(call) + queries * (BLOCK + 2)
    }

    /// The memory in [`len`](Self::len) numbers.
    ///
    /// # Safety
    /// They can be written, and are nobody else's.
    pub(super) unsafe fn new(memory: *mut f32, call: &Call<'_>, queries: usize) -> Self {
        let rows = memory.wrapping_add(BLOCK * call.width);
        let loaded = rows.wrapping_add(BLOCK * call.width);
        let scales = loaded.wrapping_add(Self::loaded_len(call));
        let weights = scales.wrapping_add(Self::scales_len(call));
        let rescale = weights.wrapping_add(queries * BLOCK);
        let ones = rescale.wrapping_add(queries);
        // SAFETY: the last `queries` numbers are part of the memory: see `# Safety`.
        unsafe { std::slice::from_raw_parts_mut(ones, queries).fill(1.0) }
        Self { panel: memory, rows, loaded, scales, weights, rescale, ones }
    }

    fn loaded_len(call: &Call<'_>) -> usize {
        if call.loader.is_some() { BLOCK * call.width } else { 0 }
    }

    /// Whole registers can be read from each scale on.
    fn scales_len(call: &Call<'_>) -> usize {
        call.scales.as_ref().map_or(0, |scales| BLOCK * scales.len + LINE)
    }
}

/// The rows of a block of tokens, of one key head.
#[derive(Clone, Copy)]
pub(super) struct BlockRows<'a> {
    /// The key head.
    pub(super) head: usize,
    /// The rows of the block's tokens.
    pub(super) offsets: &'a Offsets,
}

impl<'a> BlockRows<'a> {
    /// Rows of some of the tokens, of keys or of values, where they are; what is read in place of them next is
    /// prefetched.
    fn stored<'b>(self, call: &'b Call<'_>, kv: usize, tokens: Range<usize>, next: BlockRows<'b>) -> Rows<'b>
    where
        'a: 'b,
    {
        let (from, scale) = call.source.head(kv, self.head);
        let Offsets { cache: offsets, scale: scale_offsets, .. } = self.offsets;
        let group_bits = call.codes.map_or(0, |codes| codes.group_bits);
        let len = call.geometry.head_dim;
        Rows { from, offsets, scale, scale_offsets, len, group_bits, next: next.next(call, kv) }.some(tokens)
    }

    /// The rows with scales of float32: where they are, or read into memory.
    ///
    /// # Safety
    /// The conditions are those of [`floats`](Self::floats).
    unsafe fn codes<'b>(
        self,
        call: &'b Call<'_>,
        kv: usize,
        tokens: Range<usize>,
        next: BlockRows<'b>,
        memory: BlockMemory,
    ) -> Rows<'b>
    where
        'a: 'b,
    {
        let rows = self.stored(call, kv, tokens, next);
        let Some(Scales { read, len, offsets }) = &call.scales else { return rows };
        let stored = Rows { from: rows.scale, offsets: rows.scale_offsets, len: *len, next: Next::NONE, ..rows };
        // SAFETY: see `# Safety`: the scales are those of slots, and the memory has room for those of a block.
        unsafe { read(&Read { rows: stored, to: memory.scales, to_step: *len }) }
        let scale_offsets = &offsets[..rows.offsets.len()];
        Rows { scale: memory.scales.cast_const().cast(), scale_offsets, ..rows }
    }

    /// The rows as those that are read next, keys with the scales of keys and values.
    fn next<'b>(self, call: &'b Call<'_>, kv: usize) -> Next<'b>
    where
        'a: 'b,
    {
        let [len, scale_len] = call.source.head_len();
        Next {
            rows: call.source.head(kv, self.head).0,
            offsets: &self.offsets.cache,
            len,
            scales: [KEY, VALUE].map(|kv| call.source.head(kv, self.head).1),
            scale_offsets: if scale_len > 0 && kv == KEY { &self.offsets.scale } else { &[] },
            scale_len,
        }
    }

    /// Rows of some of the tokens as floats: where they are, or loaded.
    ///
    /// # Safety
    /// The instruction set is supported; the memory is nobody else's, and holds nothing that is still needed of rows
    /// that have been loaded.
    pub(super) unsafe fn floats<'b>(
        self,
        call: &'b Call<'_>,
        kv: usize,
        tokens: Range<usize>,
        next: BlockRows<'b>,
        memory: BlockMemory,
    ) -> Rows<'b>
    where
        'a: 'b,
    {
        // SAFETY: see `# Safety`.
        let rows = unsafe { self.codes(call, kv, tokens.clone(), next, memory) };
        let Some(loader) = &call.loader else { return rows };
        let [cache_step, scale_step] = call.source.steps();
        let scale_step = call.scales.as_ref().map_or(scale_step, |scales| scales.offsets[1]);
        let to = memory.loaded.cast::<u8>();
        for run in self.offsets.runs() {
            let (first, end) = (run.start.max(tokens.start), run.end.min(tokens.end));
            if first >= end {
                continue;
            }
            let cache = rows.from.wrapping_add(self.offsets.cache[first]);
            let scale = rows.scale.wrapping_add(rows.scale_offsets[first - tokens.start]);
            let rows = LoadedRows { count: end - first, cache, cache_step, scale, scale_step };
            // SAFETY: see `# Safety`: the rows are those of slots, and the memory has room for a block of them.
            unsafe { loader.load(&rows, to.add(call.loaded_offsets[first - tokens.start]), call.loaded_offsets[1]) }
        }
        let offsets = &call.loaded_offsets[..tokens.len()];
        Rows { from: to, offsets, scale_offsets: offsets, ..rows }
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
        match codes.map(|codes| codes.qk_rows).or(call.qk_rows) {
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
            None => qk_by_panels(call, queries, padded, [here, next], memory),
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
            };
            let pv = if in_place { pv_in_place } else { functions.pv_rows };
            match hidden {
                false => pv(&values),
                true => pv_visible_rows(pv, &values),
            }
            rescale = memory.ones;
        }
    }
}

/// QK scores of queries and so many keys, in whole registers, panel by panel.
///
/// # Safety
/// The conditions are those of [`attend_block`].
unsafe fn qk_by_panels(
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

/// Adds PV products, for each query those of the keys that it sees.
///
/// # Safety
/// The conditions are those of [`attend_block`].
unsafe fn pv_visible_rows(pv: PvRowsFunction, values: &WeightedRows<'_>) {
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
            pv(&WeightedRows {
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
