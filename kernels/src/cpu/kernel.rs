//! The kernel as callers see it.

use std::ptr;

use kvcache_schema::ElementType;
use kvcache_simd::InstructionSet;

use super::block::StridedCopy;
use super::call_plan::CallPlan;
use super::dispatch;
use super::functions::RowFunctions;
use crate::problem::{Kernel, Problem, Stores};
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
        let stream = plan.streams() && tokens.saturating_mul(token_bytes) / 2 >= self.stream_bytes;
        let parallel_bytes = self.parallel_bytes / plan.stores.geometry().quant.map_or(1, |_| QUANTIZE_FACTOR);
        run_pieces(tokens, token_bytes, parallel_bytes, workers, |tokens| plan.store(tokens, stream));
    }

    fn load_tokens(&self, plan: &CallPlan<'_>, workers: &dyn Workers) {
        let tokens = plan.stores.total_kvlen();
        if tokens == 0 {
            return;
        }
        let stream = plan.streams() && tokens.saturating_mul(plan.output_bytes()) >= self.stream_bytes;
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
