//! ONNX Runtime's intra-op thread pool as the operator's workers.

use kvcache_op::{Workers, contain_panics};
use ort::operator::ComputeContext;

/// The pool of the session that makes the call.
///
/// The session's options set its size, which the runtime does not tell. `threads` is how many the machine can run, the
/// default size. Where the pool is smaller, a kernel splits its work into more tasks than there are threads, which
/// costs next to nothing: a pool of one thread runs the tasks in a loop.
pub(crate) struct Pool<'a> {
    context: &'a ComputeContext,
    threads: usize,
}

// SAFETY: `run` is all that uses the context, and of it only `par_for`: the runtime's pool takes work from any thread.
unsafe impl Sync for Pool<'_> {}

impl<'a> Pool<'a> {
    /// The pool of the session that `context` is of, to be used as one of `threads` threads.
    pub(crate) fn new(context: &'a ComputeContext, threads: usize) -> Self {
        Self { context, threads }
    }
}

impl Workers for Pool<'_> {
    fn threads(&self) -> usize {
        self.threads
    }

    /// # Panics
    /// If a task panics, or the pool fails: on the calling thread, after all tasks have ended. The runtime's threads
    /// never unwind.
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 {
            return (0..tasks).for_each(task);
        }
        let outcome = contain_panics(task, |task| self.context.par_for(tasks, 0, task));
        if let Err(error) = outcome {
            panic!("the thread pool of ONNX Runtime failed: {error}");
        }
    }
}
