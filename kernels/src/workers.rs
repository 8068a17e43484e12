//! Threads, handed in by the caller: kernels start none of their own.

/// Bytes read and written from which on work is split among threads.
///
/// Less than that takes 100 to 200 us, of which a second thread cannot save what it costs to wake it.
pub(crate) const PARALLEL_BYTES: usize = 8 << 20;

/// The threads that a kernel may use during one call.
///
/// A kernel passes one task, to be run `tasks` times; the runs take pieces of the work from a common counter. So the
/// result is right even if an implementation runs the task late, on the calling thread, twice, or not at all.
pub trait Workers: Sync {
    /// The runs of a task that can continue at once, at least 1.
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
