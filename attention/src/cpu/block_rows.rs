//! The rows of a block of keys or values, the memory that a block takes, and what query rows have summed.

use std::ops::Range;

use super::attention_args::AttentionArgs;
use super::dispatch::PvRowsFunction;
use super::generic::merge::Accumulator;
use super::generic::pv_rows::WeightedRows;
use super::generic::read_rows::ReadInto;
use super::generic::rows::{BLOCK, Prefetch, Rows};
use super::generic::scales::Transpose;
use super::generic::softmax::QueryRow;
use super::generic::softmax::{MASKED, SUMS};
use super::read::{Integers, Read, Scales};
use super::scratch::LINE;
use super::source::Offsets;

pub(super) const KEY: usize = 0;
pub(super) const VALUE: usize = 1;

/// Query rows from which on packing values is worth it.
pub(super) const PREFILL_ROWS: usize = 16;

/// The sums of query rows over some keys: for each row a maximum, partial sums of weights and sums of values.
#[derive(Clone, Copy)]
pub(super) struct SoftmaxState {
    pub(super) max: *mut f32,
    pub(super) weights: *mut f32,
    pub(super) values: *mut f32,
    width: usize,
}

impl SoftmaxState {
    /// The memory that the state of that many rows takes.
    pub(super) fn len(rows: usize, width: usize) -> usize {
        rows.next_multiple_of(LINE) + rows * (SUMS + width)
    }

    /// The state of that many rows in [`len`](Self::len) numbers at `memory`.
    pub(super) fn new(memory: *mut f32, rows: usize, width: usize) -> Self {
        let weights = memory.wrapping_add(rows.next_multiple_of(LINE));
        Self { max: memory, weights, values: weights.wrapping_add(rows * SUMS), width }
    }

    /// The state of the rows from `row` on.
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
    /// The memory is the state of that many rows, and nobody else uses it.
    pub(super) unsafe fn clear(self, rows: usize) {
        // SAFETY: see `# Safety`.
        unsafe {
            std::slice::from_raw_parts_mut(self.max, rows).fill(f32::NEG_INFINITY);
            self.weights.write_bytes(0, rows * SUMS);
            self.values.write_bytes(0, rows * self.width);
        }
    }

    /// The sums of the first row.
    pub(super) fn accumulator(self) -> Accumulator {
        Accumulator { max: self.max, weights: self.weights, values: self.values, width: self.width }
    }
}

/// Query rows that share a key head.
pub(super) struct Queries<'a> {
    pub(super) rows: &'a [QueryRow],
    /// Each row's elements as float32, `width` of them.
    pub(super) query: *const f32,
    /// Their sums over the split's keys before the block.
    pub(super) state: SoftmaxState,
}

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
    /// The scales of keys and of values by groups, of integer codes; and weights of few queries times the latter.
    group_scales: [*mut f32; 2],
    pub(super) scaled: *mut f32,
    pub(super) weights: *mut f32,
    pub(super) rescale: *mut f32,
    pub(super) ones: *const f32,
}

impl BlockMemory {
    /// The numbers that a block takes for that many query rows at once.
    pub(super) fn len(args: &AttentionArgs<'_>, queries: usize) -> usize {
        Self::cut(std::ptr::null_mut(), args, queries).1
    }

    /// The memory in [`len`](Self::len) numbers.
    ///
    /// # Safety
    /// They can be written, and are nobody else's.
    pub(super) unsafe fn new(memory: *mut f32, args: &AttentionArgs<'_>, queries: usize) -> Self {
        let (cut, _) = Self::cut(memory, args, queries);
        // SAFETY: the last `queries` numbers are part of the memory: see `# Safety`.
        unsafe { std::slice::from_raw_parts_mut(cut.ones.cast_mut(), queries).fill(1.0) }
        cut
    }

    /// Cuts the memory into its parts, and returns the numbers that they take.
    fn cut(memory: *mut f32, args: &AttentionArgs<'_>, queries: usize) -> (Self, usize) {
        let mut len = 0;
        let mut take = |numbers: usize| {
            len += numbers;
            memory.wrapping_add(len - numbers)
        };
        let of_block = BLOCK * args.width;
        let of_heads = args.heads_at_once();
        let [keys, values] = &args.reads;
        let of_integers = |read: &Read| read.integers().map_or(0, |integers| BLOCK * integers.groups);
        let is_loaded = keys.loaded().or(values.loaded()).is_some();
        let memory = Self {
            panel: take(of_block),
            rows: take(of_block),
            loaded: take(if is_loaded { of_block } else { 0 }),
            // Whole registers can be read from each scale on.
            scales: take(args.scales.as_ref().map_or(0, |scales| BLOCK * scales.len * of_heads + LINE)),
            // The scales of keys and of values.
            group_scales: [keys, values].map(|read| take(of_heads * of_integers(read))),
            scaled: take(if queries < PREFILL_ROWS { queries * of_integers(values) } else { 0 }),
            weights: take(queries * BLOCK),
            rescale: take(queries),
            ones: take(queries),
        };
        (memory, len)
    }
}

/// The rows of a block of tokens, of one key head.
#[derive(Clone, Copy)]
pub(super) struct BlockRows<'a> {
    /// The key head, one of those that are computed block by block.
    pub(super) head: usize,
    pub(super) heads: &'a Range<usize>,
    /// The rows of the block's tokens, and of the next block's tokens; after the last block, of this block's again.
    pub(super) offsets: &'a Offsets,
    pub(super) next_offsets: &'a Offsets,
}

impl<'a> BlockRows<'a> {
    /// Rows of some of the tokens, of keys or of values, where they are; what is read in place of them next is
    /// prefetched.
    pub(super) fn stored<'b>(
        self,
        args: &'b AttentionArgs<'_>,
        kv: usize,
        tokens: Range<usize>,
        next: BlockRows<'b>,
    ) -> Rows<'b>
    where
        'a: 'b,
    {
        let (from, scale) = args.source.head(kv, self.head);
        let Offsets { cache: offsets, scale: scale_offsets, .. } = self.offsets;
        let group_bits = args.reads[kv].in_registers(0).map_or(0, |functions| functions.group_bits);
        let len = args.geometry.head_dim;
        Rows { from, offsets, scale, scale_offsets, len, group_bits, prefetch: self.prefetch(args, kv, next) }
            .some(tokens)
    }

    /// The rows with scales of float32: where they are, or read into memory.
    ///
    /// # Safety
    /// The conditions of [`floats`](Self::floats) hold.
    pub(super) unsafe fn codes<'b>(
        self,
        args: &'b AttentionArgs<'_>,
        kv: usize,
        tokens: Range<usize>,
        next: BlockRows<'b>,
        memory: BlockMemory,
    ) -> Rows<'b>
    where
        'a: 'b,
    {
        let rows = self.stored(args, kv, tokens, next);
        let Some(Scales { read, len, offsets }) = &args.scales else { return rows };
        let stored =
            Rows { from: rows.scale, offsets: rows.scale_offsets, len: *len, prefetch: Prefetch::NONE, ..rows };
        // SAFETY: see `# Safety`: the scales belong to slots, and the memory has room for the scales of a block.
        unsafe { read(&ReadInto { rows: stored, to: memory.scales, to_step: *len }) }
        let scale_offsets = &offsets[..rows.offsets.len()];
        Rows { scale: memory.scales.cast_const().cast(), scale_offsets, ..rows }
    }

    /// The scales of the block's rows of integer codes by groups, each of that many tokens, whole registers.
    ///
    /// Where the heads of a token are adjacent, the first one reads the scales of all, which are in few lines.
    ///
    /// # Safety
    /// The conditions of [`floats`](Self::floats) hold. The heads come in order, with the same tokens and memory.
    pub(super) unsafe fn group_scales(
        self,
        args: &AttentionArgs<'_>,
        (kv, integers): (usize, &Integers),
        tokens: usize,
        memory: BlockMemory,
    ) -> *const f32 {
        let first = self.head - self.heads.start;
        let to = memory.group_scales[kv];
        if kv == KEY {
            self.prefetch_scales(args);
        }
        if first == 0 {
            let len = integers.groups * self.heads.len();
            let (from, offsets) = (args.source.head(kv, self.head).1, &self.offsets.scale[..tokens]);
            // A sum times an infinite scale could be -inf, which hides a key; a product of 0 and that scale is NaN.
            let nan_for_infinity = kv == KEY;
            // SAFETY: see `# Safety`: the scales belong to slots, heads are adjacent where there are several, and
            // the memory has room for the scales of a block of them.
            unsafe {
                let transpose = integers.functions.transpose_scales;
                match &args.scales {
                    None => transpose(&Transpose { from, offsets, len, nan_for_infinity, to }),
                    Some(scales) => {
                        let rows = Rows { from, offsets, len, ..Rows::NONE };
                        // The scales of tokens without a gap are one row.
                        let bytes = args.source.head_len()[1] * self.heads.len();
                        let rows = match self.offsets.first_run() >= tokens && args.source.steps()[1] == bytes {
                            true => Rows { offsets: &offsets[..1], len: len * tokens, ..rows },
                            false => rows,
                        };
                        (scales.read)(&ReadInto { rows, to: memory.scales, to_step: len });
                        let of_heads = (len > scales.len).then(|| Scales::offsets(len));
                        let offsets = of_heads.as_ref().unwrap_or(&scales.offsets);
                        let (from, offsets) = (memory.scales.cast_const().cast(), &offsets[..tokens]);
                        transpose(&Transpose { from, offsets, len, nan_for_infinity, to });
                    }
                }
            }
        }
        to.wrapping_add(first * BLOCK * integers.groups)
    }

    /// Prefetches this head's share of the scales of the next block, which its first head reads.
    fn prefetch_scales(self, args: &AttentionArgs<'_>) {
        if std::ptr::eq(self.offsets, self.next_offsets) {
            return;
        }
        let (first, count) = (self.head - self.heads.start, self.heads.len());
        let prefetch = Prefetch {
            scales: [KEY, VALUE].map(|kv| args.source.head(kv, self.heads.start).1),
            scale_offsets: &self.next_offsets.scale,
            scale_len: args.source.head_len()[1] * count,
            to_l1: args.prefetch_to_l1,
            ..Prefetch::NONE
        };
        prefetch.scales(BLOCK * first / count..BLOCK * (first + 1) / count);
    }

    /// The rows that are prefetched while these are read: into the first-level cache the rows that are read after them,
    /// values of these keys or keys of the next block; into the second, which holds more, keys or values of the next
    /// block. Keys come with the scales of keys and values of the next block.
    fn prefetch<'b>(self, args: &'b AttentionArgs<'_>, kv: usize, next: BlockRows<'b>) -> Prefetch<'b>
    where
        'a: 'b,
    {
        if std::ptr::eq(self.offsets, next.offsets) && self.head == next.head {
            return Prefetch::NONE;
        }
        let [len, scale_len] = args.source.head_len();
        let (next_kv, after) = match (args.prefetch_to_l1, kv) {
            (true, KEY) => (VALUE, self),
            (true, _) => (KEY, next),
            (false, kv) => (kv, next),
        };
        // The scales of the next head of these tokens may share lines with this head's scales. The scales of integer
        // codes have prefetches of their own.
        let line = |head| args.source.head(KEY, head).1.addr() / kvcache_simd::LINE;
        let is_there = std::ptr::eq(self.offsets, next.offsets) && line(self.head) == line(next.head);
        let with_scales = kv == KEY && scale_len > 0 && !is_there && args.reads[KEY].integers().is_none();
        Prefetch {
            rows: args.source.head(next_kv, after.head).0,
            offsets: &after.offsets.cache,
            len,
            to_l1: args.prefetch_to_l1,
            scales: [KEY, VALUE].map(|kv| args.source.head(kv, next.head).1),
            scale_offsets: if with_scales { &next.offsets.scale } else { &[] },
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
        args: &'b AttentionArgs<'_>,
        kv: usize,
        tokens: Range<usize>,
        next: BlockRows<'b>,
        memory: BlockMemory,
    ) -> Rows<'b>
    where
        'a: 'b,
    {
        // SAFETY: see `# Safety`.
        let rows = unsafe { self.codes(args, kv, tokens.clone(), next, memory) };
        let Some(loaded) = args.reads[kv].loaded() else { return rows };
        let [cache_step, scale_step] = args.source.steps();
        let scale_step = args.scales.as_ref().map_or(scale_step, |scales| scales.offsets[1]);
        let to = memory.loaded.cast::<u8>();
        for run in self.offsets.runs() {
            let (first, end) = (run.start.max(tokens.start), run.end.min(tokens.end));
            if first >= end {
                continue;
            }
            let cache = rows.from.wrapping_add(self.offsets.cache[first]);
            let scale = rows.scale.wrapping_add(rows.scale_offsets[first - tokens.start]);
            let (cache, scale) = ((cache, cache_step), (scale, scale_step));
            // SAFETY: see `# Safety`: the rows belong to slots, and the memory has room for a block of them.
            unsafe {
                let values = (to.add(loaded.offsets[first - tokens.start]), loaded.offsets[1]);
                loaded.loader.load(end - first, cache, scale, values);
            }
        }
        let offsets = &loaded.offsets[..tokens.len()];
        Rows { from: to, offsets, scale_offsets: offsets, ..rows }
    }
}

/// Adds for each query the PV products of the keys that it sees: the keys whose weight is not [`MASKED`].
///
/// # Safety
/// The conditions of [`attend_decode`](super::decode::attend_decode) hold.
pub(super) unsafe fn pv_visible_rows(
    pv: PvRowsFunction,
    values: &WeightedRows<'_>,
    weights: *const f32,
    ones: *const f32,
) {
    let keys = values.rows.offsets.len();
    for r in 0..values.queries {
        // SAFETY: see `# Safety`: each query has a weight for each row.
        unsafe {
            let is_masked = |t: usize| (*weights.add(r * BLOCK + t)).to_bits() == MASKED.to_bits();
            let mut rescale = values.rescale.add(r);
            let mut end = 0;
            // Runs of keys that it sees; the first one, which may be empty, rescales.
            while end < keys || rescale != ones {
                let first = (end..keys).find(|&t| !is_masked(t)).unwrap_or(keys);
                end = (first..keys).find(|&t| is_masked(t)).unwrap_or(keys);
                pv(&WeightedRows {
                    weights: values.weights.add(r * BLOCK + first),
                    queries: 1,
                    rows: Rows { prefetch: Prefetch::NONE, ..values.rows.some(first..end) },
                    rescale,
                    sums: values.sums.add(r * values.width),
                    ..*values
                });
                rescale = ones;
            }
        }
    }
}
