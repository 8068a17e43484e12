//! The kernel as callers see it.

use kvcache_simd::InstructionSet;

use super::call_plan::CallPlan;
use super::partition;
use crate::problem::{Kernel, Problem, Stores};
use crate::workers::{PARALLEL_BYTES, Workers};

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
        self.store_tokens(&stores, &CallPlan::new(&stores, self.instructions), workers);
    }

    fn load(&self, problem: &mut Problem<'_>, workers: &dyn Workers) {
        self.load_tokens(problem, &CallPlan::new(problem.stores(), self.instructions), workers);
    }

    fn run(&self, problem: &mut Problem<'_>, workers: &dyn Workers) {
        let plan = CallPlan::new(problem.stores(), self.instructions);
        self.store_tokens(problem.stores(), &plan, workers);
        self.load_tokens(problem, &plan, workers);
    }
}

impl Cpu {
    fn store_tokens(&self, stores: &Stores<'_>, plan: &CallPlan<'_>, workers: &dyn Workers) {
        let tokens = stores.total_seqlen();
        if tokens == 0 {
            // Without tokens a token's size need not fit in memory.
            return;
        }
        let token_bytes = plan.value_bytes() + plan.cache_bytes();
        let stream = plan.streams() && tokens.saturating_mul(token_bytes) / 2 >= self.stream_bytes;
        let parallel_bytes = self.parallel_bytes / stores.geometry().quant.map_or(1, |_| QUANTIZE_FACTOR);
        partition::run(workers, tokens, token_bytes, parallel_bytes, |tokens| plan.store(tokens, stream));
    }

    fn load_tokens(&self, problem: &Problem<'_>, plan: &CallPlan<'_>, workers: &dyn Workers) {
        let (tokens, outputs) = (problem.stores().total_kvlen(), &problem.outputs());
        if tokens == 0 {
            return;
        }
        let output_bytes = plan.value_bytes() * outputs.num_repeat;
        let stream = plan.streams() && tokens.saturating_mul(output_bytes) >= self.stream_bytes;
        let token_bytes = plan.cache_bytes() + output_bytes;
        partition::run(workers, tokens, token_bytes, self.parallel_bytes, |tokens| plan.load(outputs, tokens, stream));
    }
}
