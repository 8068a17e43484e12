//! Splits the tokens of a phase, store or load, among the caller's threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::workers::Workers;

/// Bytes read and written in one piece of work, at least; small enough to even out threads of different speed.
const PIECE_BYTES: usize = 1 << 20;

/// Runs `work` over ranges of packed tokens that together are `0..tokens`, each token in one of them.
///
/// Pieces are equal in tokens however ragged the batch is, and a thread takes the next when it is done with one.
/// `token_bytes` is what a token makes `work` read and write; if it is nothing, there is no work. Less than
/// `parallel_bytes` in all are one thread's work.
pub(crate) fn run(
    workers: &dyn Workers,
    tokens: usize,
    token_bytes: usize,
    parallel_bytes: usize,
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
    let next = AtomicUsize::new(0);
    let take = |_: usize| {
        // Claimed by counting, not by the task's number: no token is moved twice even if the caller's workers err.
        loop {
            let start = next.fetch_add(piece, Ordering::Relaxed);
            if start >= tokens {
                break;
            }
            work(start..tokens.min(start + piece));
        }
    };
    workers.run(threads, &take);
    take(0);
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
            run(&Careless(threads), tokens, token_bytes, 0, |piece| pieces.lock().unwrap().push(piece));
            let mut pieces = pieces.into_inner().unwrap();
            pieces.sort_by_key(|piece| piece.start);
            assert_eq!(pieces.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (0..tokens).collect::<Vec<_>>());
        }
    }
}
