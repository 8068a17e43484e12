//! The threads of calls: one Rayon pool for each process.
//!
//! `os.fork` copies the memory of a pool, but not its threads: a call on a parent's pool would wait for them forever.
//! So a pool is used only in the process that made it, and the first call of a forked process makes one of its own.

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use kvcache_op::{Rayon, Serial, Workers};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// The pool that calls use. An atomic and not a lock, which another thread might hold at the moment of a fork. What it
/// points to lives until the process ends: to drop a parent's pool in a child would wait for its threads, too.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());

/// A pool and the process in which its threads are.
struct Pool {
    process: u32,
    threads: ThreadPool,
}

impl Pool {
    /// The pool of this process, made if there is none; `None` if the system gives no threads.
    fn of_this_process() -> Option<&'static Self> {
        let process = process::id();
        let last = POOL.load(Ordering::Acquire);
        // SAFETY: null, or a pool that is never freed once `POOL` has pointed to it.
        if let Some(pool) = unsafe { last.as_ref() }.filter(|pool| pool.process == process) {
            return Some(pool);
        }
        let threads = ThreadPoolBuilder::new().build().ok()?;
        let made = Box::into_raw(Box::new(Self { process, threads }));
        match POOL.compare_exchange(last, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `made` is a box's, and never freed since `POOL` has pointed to it.
            Ok(_) => unsafe { made.as_ref() },
            Err(first) => {
                // SAFETY: `made` is a box's, which nobody else has seen.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: the pool of another thread of this process, never freed as above.
                unsafe { first.as_ref() }
            }
        }
    }
}

/// The threads of this process' pool, as many as `RAYON_NUM_THREADS` says or the machine runs at once. Where the system
/// gives none, the calling thread does all: the number of threads does not change a bit.
#[derive(Debug, Clone, Copy)]
pub struct Threads;

impl Workers for Threads {
    fn threads(&self) -> usize {
        Pool::of_this_process().map_or(1, |pool| pool.threads.current_num_threads())
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        match Pool::of_this_process() {
            Some(pool) => pool.threads.install(|| Rayon.run(tasks, task)),
            None => Serial.run(tasks, task),
        }
    }
}
