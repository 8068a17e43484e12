//! The kernel as callers see it, and each thread's way through its tokens, from a checked call to blocks.
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
use std::ptr;

use kvcache_schema::ElementType;
use kvcache_simd::{InstructionSet, LINE};

use super::block::{Block, Operand, PerOperand, Prefetch, Rows, StridedCopy};
use super::call_plan::CallPlan;
use super::dispatch::{self, RowFunctions};
use super::generic::stream_writer::{StagingBuffer, StreamWriter, Writers};
use super::tiling::{Order, Part, Tiling, Tuning};
use crate::addressing::Run;
use crate::cache_bytes::CacheBytes;
use crate::problem::{Geometry, Kernel, Problem, Stores};
use crate::workers::{PARALLEL_BYTES, Workers, run_pieces};

/// A copy whose places are offsets in its memory.
pub(crate) type OffsetCopy = StridedCopy<usize, usize>;

impl OffsetCopy {
    /// The rows copied back.
    pub(crate) fn back(self) -> Self {
        let Self { from, from_step, to, to_step, .. } = self;
        Self { from: to, from_step: to_step, to: from, to_step: from_step, ..self }
    }
}

/// The fast CPU kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cpu {
    pub(super) instructions: InstructionSet,
    stream_bytes: usize,
    pub(super) parallel_bytes: usize,
}

/// Quantizing takes this many times as long as copying as many bytes.
pub(super) const QUANTIZE_FACTOR: usize = 2;

/// The prefetch distance of a store with non-temporal stores, in bytes of values.
const STORE_PREFETCH: Prefetch = Prefetch { row: 4096, scale: 0 };

impl Cpu {
    /// Bytes from which on what a phase writes is written by non-temporal stores, unless a caller says otherwise: bytes
    /// that a load writes, and half of those that a store reads and writes, since what it reads drives out what it
    /// writes.
    ///
    /// Less than that is likely to be read again, by attention, before it leaves the last-level cache.
    pub const STREAM_BYTES: usize = 32 << 20;

    /// Bytes read and written in a phase from which on it is split among threads, unless a caller says otherwise; half
    /// of them where a store quantizes.
    pub const PARALLEL_BYTES: usize = PARALLEL_BYTES;

    /// The kernel with the rows of an instruction set; none if this machine lacks it.
    pub fn with_instructions(instructions: InstructionSet) -> Option<Self> {
        instructions.is_supported().then_some(Self::of(instructions.of_floats()))
    }

    fn of(instructions: InstructionSet) -> Self {
        Self { instructions, stream_bytes: Self::STREAM_BYTES, parallel_bytes: Self::PARALLEL_BYTES }
    }

    /// The kernel with another threshold for non-temporal stores, in place of [`STREAM_BYTES`](Self::STREAM_BYTES).
    pub fn with_stream_bytes(self, stream_bytes: usize) -> Self {
        Self { stream_bytes, ..self }
    }

    /// The kernel with another threshold for the use of several threads: the bytes that a phase reads and writes.
    pub fn with_parallel_bytes(self, parallel_bytes: usize) -> Self {
        Self { parallel_bytes, ..self }
    }
}

impl Default for Cpu {
    /// The kernel with the widest instructions that this machine has, up to `KVCACHE_INSTRUCTION_SET`.
    fn default() -> Self {
        Self::of(InstructionSet::best().of_floats())
    }
}

impl Kernel for Cpu {
    fn name(&self) -> &'static str {
        self.instructions.kernel_name()
    }

    fn store(&self, stores: Stores<'_>, workers: &dyn Workers) {
        self.store_tokens(&CallPlan::new(&stores, 1, [ptr::null_mut(); 2], self.instructions), workers);
    }

    fn load(&self, problem: &mut Problem<'_>, workers: &dyn Workers) {
        self.load_tokens(&self.plan(problem), workers);
    }

    fn run(&self, problem: &mut Problem<'_>, workers: &dyn Workers) {
        let plan = self.plan(problem);
        self.store_tokens(&plan, workers);
        self.load_tokens(&plan, workers);
    }
}

impl Cpu {
    fn plan<'a>(&self, problem: &'a Problem<'_>) -> CallPlan<'a> {
        CallPlan::new(problem.stores(), problem.num_repeat(), problem.outputs(), self.instructions)
    }

    fn store_tokens(&self, plan: &CallPlan<'_>, workers: &dyn Workers) {
        let tokens = plan.stores.total_seqlen();
        if tokens == 0 {
            // Without tokens a token's size need not fit in memory.
            return;
        }
        let token_bytes = plan.value_bytes() + plan.cache_bytes();
        let stream = plan.functions.streams && tokens.saturating_mul(token_bytes) / 2 >= self.stream_bytes;
        let parallel_bytes = self.parallel_bytes / plan.stores.geometry().quant.map_or(1, |_| QUANTIZE_FACTOR);
        run_pieces(tokens, token_bytes, parallel_bytes, workers, |tokens| plan.store(tokens, stream));
    }

    fn load_tokens(&self, plan: &CallPlan<'_>, workers: &dyn Workers) {
        let tokens = plan.stores.total_kvlen();
        if tokens == 0 {
            return;
        }
        let stream = plan.functions.streams && tokens.saturating_mul(plan.output_bytes()) >= self.stream_bytes;
        let token_bytes = plan.cache_bytes() + plan.output_bytes();
        run_pieces(tokens, token_bytes, self.parallel_bytes, workers, |tokens| plan.load(tokens, stream));
    }

    /// Copies rows of `from` to rows of `to`, one copy after the other: with a prefetch distance by non-temporal stores
    /// where there are any.
    ///
    /// # Panics
    /// If a row is not inside its memory, or a copy has no rows.
    pub(crate) fn copy_bytes(
        &self,
        from: &[u8],
        to: &mut [u8],
        all: impl Iterator<Item = OffsetCopy>,
        stream: Option<usize>,
    ) {
        let bytes = (ElementType::Int8, ElementType::Int8, None);
        let RowFunctions { copy, stream_any, fence, .. } = dispatch::row_functions(self.instructions, bytes, 1);
        let prefetch = stream.map(|distance| distance as isize);
        let copy = if stream.is_some() { stream_any } else { copy.plain };
        for StridedCopy { from: from_at, from_step, to: to_at, to_step, len, rows, copies: _, prefetch: _ } in all {
            // From the beginning of the first row to the end of the last.
            let extent = |step: usize| (rows - 1) * step + len;
            let from = from[from_at..][..extent(from_step)].as_ptr();
            let to = to[to_at..][..extent(to_step)].as_mut_ptr();
            // SAFETY: the rows are inside of `from` and of `to`, checked above, which is other memory, since it is
            // borrowed mutably. `Cpu` is made for supported instruction sets alone.
            unsafe { copy(&StridedCopy { from, from_step, to, to_step, len, rows, copies: 1, prefetch }) }
        }
        if stream.is_some() {
            fence();
        }
    }
}

impl CallPlan<'_> {
    /// Stores a range of rows of `current_key` and `current_value`.
    fn store(&self, tokens: Range<usize>, stream: bool) {
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
                    unsafe { self.store_block(&block, writers) }
                });
            }
        }
    }

    /// Loads a range of rows of `key` and `value`.
    fn load(&self, tokens: Range<usize>, stream: bool) {
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
                    unsafe { self.load_block(&block, writers) }
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
        let row = self.heads[part.kv].times(heads);
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
