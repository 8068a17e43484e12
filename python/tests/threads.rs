//! The pool of the process, which the first calls make at once: one of the pools stays. (The module needs no Python, so
//! a test program can have it; the rest of the crate has no interpreter to link to here.)

#[path = "../src/threads.rs"]
mod threads;

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, thread};

use kvcache_op::Workers;
use threads::Threads;

#[test]
fn first_calls_at_once_make_one_pool() {
    const CALLS: usize = 8;
    // The main thread, this one, and what a sanitizer has.
    let before = count();
    let barrier = Barrier::new(CALLS);
    thread::scope(|scope| {
        for _ in 0..CALLS {
            scope.spawn(|| {
                barrier.wait();
                for tasks in 0..50 {
                    let runs: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                    Threads.run(tasks, &|i| {
                        runs[i].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1), "{runs:?}");
                }
            });
        }
    });
    // Those of the pool that stays come to these; the others end, a moment later.
    let expected = before.map(|before| before + Threads.threads());
    let ended = (0..2000).any(|_| {
        thread::sleep(Duration::from_millis(5));
        count() <= expected
    });
    assert!(ended, "{:?} threads, expected {expected:?}", count());
}

/// The threads of this process; `None` where the system does not say.
fn count() -> Option<usize> {
    cfg!(target_os = "linux").then(|| fs::read_dir("/proc/self/task").unwrap().count())
}
