//! Parallelism, handed in by the caller.

/// Threads that a kernel may use, given by the caller for one call.
///
/// A kernel asks for its task to be run `tasks` times; the runs share the work among themselves, so it does no harm to
/// the result if an implementation runs a task late, on the calling thread, twice, or not at all.
pub trait Workers: Sync {
    /// How many tasks can run at once, at least 1.
    fn threads(&self) -> usize;

    /// Runs `task(0)` to `task(tasks - 1)`, at once where possible, and returns when all have ended.
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync));
}

/// The calling thread alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Serial;

impl Workers for Serial {
    fn threads(&self) -> usize {
        1
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(task);
    }
}
