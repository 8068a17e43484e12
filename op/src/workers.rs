//! Workers on rayon's thread pool.

use kvcache_kernels::Workers;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

/// The threads of the rayon pool that the call is made in: the global one, or that of `ThreadPool::install`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rayon;

impl Workers for Rayon {
    fn threads(&self) -> usize {
        rayon::current_num_threads()
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).into_par_iter().with_max_len(1).for_each(task);
    }
}
