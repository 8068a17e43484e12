//! A thread's way through its tokens, from a checked call to blocks.
//!
//! ```text
//! for each sequence of the thread's packed tokens
//!     for each run of its tokens in neighboring slots            (addressing)
//!         for each part of the run: keys or values of a tile      (tiling)
//!             block = addresses and strides of the part's rows
//!             store or load the block                             (store_block, load_block)
//! with non-temporal stores: write what the stream writers hold, and fence
//! ```

use std::ops::Range;

use kvcache_schema::ElementType;
use kvcache_simd::{InstructionSet, LINE};

use super::block::{Block, Operand, PerOperand, Prefetch, Row, Rows};
use super::block_kernel::{BlockKernel, Writers};
use super::dispatch;
use super::functions::RowFunctions;
use super::generic::stream_writer::{StagingBuffer, StreamWriter};
use super::tiling::{Order, Part, Tiling, Tuning};
use crate::addressing::Run;
use crate::cache_bytes::CacheBytes;
use crate::problem::{Geometry, Stores};

/// The prefetch distance of a store with non-temporal stores, in bytes of values.
const STORE_PREFETCH: Prefetch = Prefetch { row: 4096, scale: 0 };

/// A call in the form that the threads share.
pub(crate) struct CallPlan<'a> {
    pub(super) stores: &'a Stores<'a>,
    num_repeat: usize,
    outputs: [*mut u8; 2],
    functions: RowFunctions,
    /// The bits of an element.
    bits: PerOperand,
    /// The elements of a head.
    head: Row,
    bytes: CacheBytes,
}

// SAFETY: threads read the current tokens, and write disjoint ranges of tokens: in the store phase to slots of which no
// two tokens share one, in the load phase to the outputs while the cache is only read. `Stores::assume_checked` keeps
// others away.
unsafe impl Sync for CallPlan<'_> {}

impl<'a> CallPlan<'a> {
    /// The call with the row functions of an instruction set that this machine has; a call that loads nothing may have
    /// any outputs.
    pub(crate) fn new(
        stores: &'a Stores<'a>,
        num_repeat: usize,
        outputs: [*mut u8; 2],
        instructions: InstructionSet,
    ) -> Self {
        let geometry = stores.geometry();
        let Geometry { t1, t2, quant, head_dim, .. } = *geometry;
        let t3 = quant.map(|quant| quant.t3);
        let group = quant.map_or(1, |quant| quant.group);
        let functions = match quant {
            Some(quant) if quant.has_static_scales() => {
                dispatch::static_scale_functions(instructions, (t1, t2, quant.t3), group)
            }
            _ => dispatch::row_functions(instructions, (t1, t2, t3), group),
        };
        let bits = PerOperand { values: t1.bits(), cache: t2.bits(), scale: t3.map_or(0, ElementType::bits) };
        let (head, bytes) = (Row::new(head_dim, group), CacheBytes::new(geometry));
        Self { stores, num_repeat, outputs, functions, bits, head, bytes }
    }

    /// Bytes of a token's key and value.
    pub(crate) fn value_bytes(&self) -> usize {
        let Geometry { num_heads, head_dim, t1, .. } = *self.stores.geometry();
        2 * t1.byte_len(num_heads * head_dim)
    }

    /// Bytes that a load writes of a token.
    pub(crate) fn output_bytes(&self) -> usize {
        self.value_bytes() * self.num_repeat
    }

    /// Bytes that a token's key and value take in cache and scale.
    pub(crate) fn cache_bytes(&self) -> usize {
        let Geometry { num_heads, head_dim, t2, quant, .. } = *self.stores.geometry();
        let len = 2 * num_heads * head_dim;
        t2.byte_len(len) + quant.map_or(0, |quant| quant.t3.byte_len(len / quant.group))
    }

    /// Whether the instruction set has non-temporal stores.
    pub(crate) fn streams(&self) -> bool {
        self.functions.streams
    }

    /// The kernel of keys (0) or values (1).
    fn kernel(&self, kv: usize) -> BlockKernel<'_> {
        BlockKernel { functions: &self.functions, bits: self.bits, order: self.stores.geometry().rotation_order(kv) }
    }

    /// The row of a slot's head in cache, and the row of its scales.
    fn row(&self, slot: usize, kv: usize, h: usize) -> [*mut u8; 2] {
        let (pointers, (cache, scale)) = (self.stores.pointers(), self.bytes.head(slot, kv, h));
        [pointers.cache.wrapping_add(cache), pointers.scale.wrapping_add(scale)]
    }

    /// Stores a range of rows of `current_key` and `current_value`.
    pub(crate) fn store(&self, tokens: Range<usize>, stream: bool) {
        let whole_lines = self.row(0, 0, 0)[0].addr().is_multiple_of(LINE)
            && self.bytes.cache.head.is_multiple_of(LINE)
            && self.bytes.cache.head_len.is_multiple_of(LINE);
        let tiling = Tiling::store(self.stores.geometry(), stream, whole_lines);
        self.with_writers(stream, |plan, writers| plan.store_runs(tokens, tiling, writers));
    }

    fn store_runs(&self, tokens: Range<usize>, tiling: Tiling, mut writers: Option<&mut [Writers<'_>; 2]>) {
        let indices = self.stores.indices();
        for (b, part) in parts(indices.seqstarts, tokens) {
            let sequence = indices.sequence(b);
            let positions = sequence.start_pos + part.start..sequence.start_pos + part.end;
            for run in indices.addressing.runs(b, positions) {
                let token = sequence.current.start + run.token - sequence.start_pos;
                let at = token * self.value_bytes() / 2;
                let values = self.stores.pointers().current.map(|current| current.cast_mut().wrapping_add(at));
                tiling.for_each_part(run.len, |part| {
                    let mut block = self.block(tiling, &part, run, values, 1);
                    block.rows.prefetch = writers.is_some().then_some(STORE_PREFETCH);
                    let writers = writers.as_deref_mut().map(|writers| &mut writers[part.kv]);
                    // SAFETY: the block is in the run's tokens and heads, checked by `Stores`; `Cpu` is made for
                    // supported instruction sets alone.
                    unsafe { self.kernel(part.kv).store(&block, writers) }
                });
            }
        }
    }

    /// Loads a range of rows of `key` and `value`.
    pub(crate) fn load(&self, tokens: Range<usize>, stream: bool) {
        let geometry = self.stores.geometry();
        let whole_lines = self.outputs.iter().all(|output| output.addr().is_multiple_of(LINE))
            && geometry.t1.byte_len(geometry.head_dim).is_multiple_of(LINE);
        let tiling = if stream {
            Tiling::streamed_load(geometry, self.num_repeat, whole_lines, Tuning::of_machine())
        } else {
            Tiling::plain_load(geometry, self.num_repeat, self.stores.total_kvlen() * self.output_bytes())
        };
        self.with_writers(stream, |plan, writers| plan.load_runs(tokens, tiling, writers));
    }

    fn load_runs(&self, tokens: Range<usize>, tiling: Tiling, mut writers: Option<&mut [Writers<'_>; 2]>) {
        let indices = self.stores.indices();
        for (b, part) in parts(indices.kvstarts, tokens) {
            let start = indices.sequence(b).all.start;
            let mut runs = indices.addressing.runs(b, part).peekable();
            while let Some(run) = runs.next() {
                let at = (start + run.token) * (self.output_bytes() / 2);
                let values = self.outputs.map(|output| output.wrapping_add(at));
                let next = runs.peek().map(|next| next.slot);
                tiling.for_each_part(run.len, |part| {
                    let mut block = self.block(tiling, &part, run, values, self.num_repeat);
                    block.rows.prefetch = self.prefetch(&part, run, next);
                    let writers = writers.as_deref_mut().map(|writers| &mut writers[part.kv]);
                    // SAFETY: the block is in the run's tokens and heads, checked by `Stores`; its copies are the next
                    // num_repeat - 1 heads of the output.
                    unsafe { self.kernel(part.kv).load(&block, writers) }
                });
            }
        }
    }

    /// The distance from a part's first row in cache and scale to what is prefetched; `next` is the slot after the run.
    fn prefetch(&self, part: &Part, run: Run, next: Option<usize>) -> Option<Prefetch> {
        let (kv, token, row) = part.prefetch?;
        let slot = if token < run.len { run.slot + token } else { next? + token - run.len };
        let from = self.row(run.slot + part.tokens.start, part.kv, part.rows.start);
        let to = self.row(slot, kv, row);
        let [row, scale] = [0, 1].map(|i| to[i].addr().wrapping_sub(from[i].addr()) as isize);
        Some(Prefetch { row, scale })
    }

    /// A part of a run, of which `values` are the first of `copies` copies.
    fn block(&self, tiling: Tiling, part: &Part, run: Run, values: [*mut u8; 2], copies: usize) -> Block {
        let &Geometry { num_heads, t1, .. } = self.stores.geometry();
        let heads = if tiling.rows == 1 { num_heads } else { 1 };
        let row = self.head.times(heads);
        let row_bytes = t1.byte_len(row.len) * copies;
        let token_bytes = row_bytes * tiling.rows;
        let CacheBytes { cache, scale, .. } = self.bytes;
        let by_token = PerOperand { values: token_bytes, cache: cache.token, scale: scale.token };
        let by_head = PerOperand { values: row_bytes, cache: cache.head, scale: scale.head };
        let (tokens, rows) = (part.tokens.len(), part.rows.len());
        let adjacent = || [cache, scale].iter().all(|strides| strides.token == rows * strides.head);
        let (outer, outer_step, count, step, row) = match tiling.order {
            Order::HeadsOuter => (rows, by_head, tokens, by_token, row),
            Order::TokensOuter if tiling.one_row => (1, PerOperand::ZERO, 1, PerOperand::ZERO, row.times(tokens)),
            Order::TokensOuter if tiling.rows == 1 => (1, PerOperand::ZERO, tokens, by_token, row),
            Order::TokensOuter if adjacent() => (1, PerOperand::ZERO, tokens * rows, by_head, row),
            Order::TokensOuter => (tokens, by_token, rows, by_head, row),
        };
        let [cache, scale] = self.row(run.slot + part.tokens.start, part.kv, part.rows.start);
        let values = values[part.kv].wrapping_add(part.tokens.start * token_bytes + part.rows.start * row_bytes);
        let rows = Rows {
            count,
            row,
            values: Operand { data: values, step: step.values },
            cache: Operand { data: cache, step: step.cache },
            scale: Operand { data: scale, step: step.scale },
            prefetch: None,
        };
        Block { outer, outer_step, rows, copies }
    }

    /// Calls `work` with writers for keys and for values if it is to stream, and writes what is left in them after it.
    fn with_writers(&self, stream: bool, work: impl FnOnce(&Self, Option<&mut [Writers<'_>; 2]>)) {
        if stream { self.with_new_writers(|plan, writers| work(plan, Some(writers))) } else { work(self, None) }
    }

    /// Calls `work` with writers, and writes what is left in them: a function of its own, since the staging buffers
    /// make a large frame.
    #[inline(never)]
    fn with_new_writers(&self, work: impl FnOnce(&Self, &mut [Writers<'_>; 2])) {
        let mut stages = [const { StagingBuffer::new() }; 4];
        let [a, b, c, d] = stages.each_mut().map(StreamWriter::new);
        let mut writers = [[a, b], [c, d]];
        work(self, &mut writers);
        for writer in writers.as_flattened_mut() {
            // SAFETY: what was committed is of this call's blocks, whose memory is still valid.
            unsafe { writer.finish() };
        }
        (self.functions.fence)();
    }
}

/// The sequences that packed tokens belong to, each with its part of them, counted in the sequence.
fn parts(starts: &[i64], tokens: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let first = starts.partition_point(|&start| start as usize <= tokens.start).saturating_sub(1);
    (first..starts.len() - 1)
        .take_while(move |&b| (starts[b] as usize) < tokens.end)
        .map(move |b| {
            let (start, end) = (starts[b] as usize, starts[b + 1] as usize);
            (b, tokens.start.max(start) - start..tokens.end.min(end).saturating_sub(start))
        })
        .filter(|(_, part)| !part.is_empty())
}
