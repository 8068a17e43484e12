//! Threads, handed in by the caller: kernels start none of their own. They split their work into tasks here.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes read and written from which on work is split among threads.
///
/// Less than that takes 100 to 200 us, of which a second thread cannot save what it costs to wake it.
pub(crate) const PARALLEL_BYTES: usize = 8 << 20;

/// Bytes read and written in one piece of work, at least; small enough to even out threads of different speed.
const PIECE_BYTES: usize = 1 << 20;

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

/// Runs `run(0)` to `run(tasks - 1)`, each once, on at most `threads` threads of the workers; the calling
/// thread takes what they leave.
pub fn run_each(tasks: usize, threads: usize, workers: &dyn Workers, run: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    // Claimed by counting, not by the workers' number: no task is run twice even if they err.
    let take = |_: usize| {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                break;
            }
            run(task);
        }
    };
    let threads = threads.min(tasks);
    if threads > 1 {
        workers.run(threads, &take);
    }
    take(0);
}

/// Runs `work` over ranges that together are `0..tokens`, each token in one of them.
///
/// Pieces are equal in tokens however ragged the batch is, and a thread takes the next when it is done with one.
/// `token_bytes` is what a token makes `work` read and write; if it is nothing, there is no work. Less than
/// `parallel_bytes` in all are one thread's work.
pub(crate) fn run_pieces(
    tokens: usize,
    token_bytes: usize,
    parallel_bytes: usize,
    workers: &dyn Workers,
    work: impl Fn(Range<usize>) + Sync,
) {
    let bytes = tokens.saturating_mul(token_bytes);
    if bytes == 0 {
        return;
    }
    let threads = workers.threads();
    if threads <= 1 || bytes < parallel_bytes {
        return work(0..tokens);
    }
    let piece = (PIECE_BYTES / token_bytes).clamp(1, tokens.div_ceil(threads));
    run_each(tokens.div_ceil(piece), threads, workers, |i| work(i * piece..tokens.min((i + 1) * piece)));
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Workers that do not keep to the contract: they run one task twice and the others never.
    struct Careless(usize);

    impl Workers for Careless {
        fn threads(&self) -> usize {
            self.0
        }

        fn run(&self, _: usize, task: &(dyn Fn(usize) + Sync)) {
            task(0);
            task(0);
        }
    }

    #[test]
    fn every_token_is_in_one_piece() {
        for (tokens, token_bytes, threads) in
            [(0, 8, 2), (1, 1 << 30, 2), (7, 1 << 20, 3), (1000, 1 << 12, 2), (3, usize::MAX, 2)]
        {
            let pieces = Mutex::new(Vec::new());
            run_pieces(tokens, token_bytes, 0, &Careless(threads), |piece| pieces.lock().unwrap().push(piece));
            let mut pieces = pieces.into_inner().unwrap();
            pieces.sort_by_key(|piece| piece.start);
            assert_eq!(pieces.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (0..tokens).collect::<Vec<_>>());
        }
    }
}
