//! The kernel as callers see it.

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicUsize;

use kvcache_kernels::{Workers, run_each};
use kvcache_simd::InstructionSet;

use super::attention_args::AttentionArgs;
use super::mass::{self, Mass};
use super::schedule::{Schedule, Size};
use super::scratch;
use super::task::{self, Shared};
use crate::problem::{AttentionKernel, AttentionProblem};

/// The fast CPU kernel: a streaming softmax over blocks of keys, which are read where they are, once for all query
/// heads that share a key head.
///
/// The output of a token has the same bits whatever else is in the batch, on any number of threads, wherever the keys
/// and values are and in whatever calls they came; see [`AttentionKernel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionCpu {
    instructions: InstructionSet,
    parallel_cost: usize,
}

impl AttentionCpu {
    /// Multiplications from which on a call is split among threads, unless a caller says otherwise; what is read counts
    /// as some more. Fewer take no longer than to wake a thread.
    pub const PARALLEL_COST: usize = 1 << 20;

    /// The kernel with the vectors of an instruction set; none if this machine lacks it.
    pub fn with_instructions(instructions: InstructionSet) -> Option<Self> {
        instructions
            .is_supported()
            .then_some(Self { instructions: instructions.of_floats(), parallel_cost: Self::PARALLEL_COST })
    }

    /// The kernel with another threshold for the use of several threads, in place of
    /// [`PARALLEL_COST`](Self::PARALLEL_COST).
    pub fn with_parallel_cost(self, parallel_cost: usize) -> Self {
        Self { parallel_cost, ..self }
    }
}

impl Default for AttentionCpu {
    /// The kernel with the widest instructions that this machine has.
    fn default() -> Self {
        Self { instructions: InstructionSet::best().of_floats(), parallel_cost: Self::PARALLEL_COST }
    }
}

impl AttentionKernel for AttentionCpu {
    fn name(&self) -> &'static str {
        self.instructions.kernel_name()
    }

    fn attend(
        &self,
        problem: &AttentionProblem<'_>,
        attn_output: &mut [MaybeUninit<u8>],
        mass: Option<&mut [MaybeUninit<f32>]>,
        workers: &dyn Workers,
    ) {
        let mass = mass.map(|mass| problem.zeroed_mass(mass));
        if problem.total_seqlen() == 0 {
            return; // and `num_heads` may be any number
        }
        let mut totals = mass.as_ref().map(|_| vec![[0.0; 2]; problem.total_seqlen() * problem.geometry().num_heads]);
        let args = AttentionArgs::new(problem, attn_output, totals.as_deref_mut(), self.instructions);
        let size = Size {
            num_kv_heads: args.geometry.num_kv_heads,
            group: args.group(),
            head_dim: args.geometry.head_dim,
            heads_are_adjacent: args.source.heads_are_adjacent(),
            threads: workers.threads(),
            parallel_cost: self.parallel_cost,
        };
        if size.group == 0 || size.head_dim == 0 {
            return;
        }
        let batch = (0..args.geometry.batch).map(|b| (b, args.indices.sequence(b).queries.len()));
        let schedule = Schedule::new(size, batch, |b, i| args.visible(b, i));
        let threads = if schedule.parallel { workers.threads() } else { 1 };
        let ended: Vec<_> = (0..schedule.reductions).map(|_| AtomicUsize::new(0)).collect();
        scratch::for_call(schedule.reduction_rows * task::state_len(&args), |states| {
            let shared = Shared { tiles: &schedule.tiles, ended: &ended, states };
            let tasks = &schedule.tasks;
            // SAFETY: the instruction set is supported, checked when the kernel was made; each task is taken once.
            run_each(tasks.len(), threads, workers, |i| unsafe { task::run(&args, &tasks[i], &shared) });
        });
        if let Some(mass) = mass {
            let mass = Mass { data: mass.as_mut_ptr(), total_kvlen: problem.total_kvlen() };
            let tasks = mass::tasks(&args);
            // SAFETY: as above, and all tasks that keep totals have ended.
            run_each(tasks.len(), threads, workers, |i| unsafe { mass::run(&args, &tasks[i], &mass) });
        }
    }
}
