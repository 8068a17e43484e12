//! The threads of a call: a pool of the library's, or the caller's own.

use std::ffi::c_void;

use kvcache_op::{Rayon, Serial, Workers, contain_panics};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, free, guard, kvcache_error, result};

/// The threads that calls use. Several calls may use it at once.
pub struct kvcache_workers(Box<dyn Workers + Send + Sync>);

/// A piece of work: `task(argument, i)` does part i. It does not throw or unwind.
pub type kvcache_task = unsafe extern "C" fn(argument: *mut c_void, index: usize);

/// Calls task(argument, i) once for each i of 0 .. tasks - 1, on as many threads at once as it can, and returns when
/// all have ended. `context` is what kvcache_workers_from was given. NULL is none, and refused.
pub type kvcache_parallel_for =
    Option<unsafe extern "C" fn(context: *mut c_void, tasks: usize, task: kvcache_task, argument: *mut c_void)>;

type ParallelFor = unsafe extern "C" fn(*mut c_void, usize, kvcache_task, *mut c_void);

struct Custom {
    threads: usize,
    context: *mut c_void,
    parallel_for: ParallelFor,
}

// SAFETY: `kvcache_workers_from`: the function may be called with the context from any thread.
unsafe impl Send for Custom {}
// SAFETY: as above, and from several at once.
unsafe impl Sync for Custom {}

impl kvcache_workers {
    /// The workers behind `workers`; the calling thread for null.
    ///
    /// # Safety
    /// `workers` is null or, for the lifetime, has not been freed.
    pub(crate) unsafe fn borrow<'a>(workers: *const Self) -> &'a dyn Workers {
        // SAFETY: null or workers that have not been freed.
        match unsafe { workers.as_ref() } {
            None => &Serial,
            Some(Self(workers)) => &**workers,
        }
    }
}

/// Threads of rayon's that are the caller's alone.
struct Pool(ThreadPool);

impl Workers for Pool {
    fn threads(&self) -> usize {
        self.0.current_num_threads()
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.0.install(|| Rayon.run(tasks, task));
    }
}

/// Runs one part.
///
/// # Safety
/// `argument` is a task that does not unwind.
unsafe extern "C" fn run_task(argument: *mut c_void, index: usize) {
    // SAFETY: `Custom::run` passes a task, which lives until all parts have ended.
    let task = unsafe { *argument.cast_const().cast::<&(dyn Fn(usize) + Sync)>() };
    task(index);
}

impl Workers for Custom {
    fn threads(&self) -> usize {
        self.threads
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        contain_panics(task, |task| {
            let argument = (&raw const task).cast_mut().cast();
            // SAFETY: `kvcache_workers_from`: the function calls `run_task` with this argument, and returns when all
            // calls have ended. None unwinds: `contain_panics`.
            unsafe { (self.parallel_for)(self.context, tasks, run_task, argument) };
        });
    }
}

/// Makes a pool of `threads` threads, or as many as the machine runs at once if it is 0; free it with
/// kvcache_workers_free. After a fork the child makes one of its own: it has none of its parent's threads.
///
/// # Safety
/// `workers` is NULL or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_workers_new(threads: usize, workers: *mut *mut kvcache_workers) -> *mut kvcache_error {
    guard(|| {
        // SAFETY: NULL or valid for writes.
        let workers = unsafe { result(workers, "workers") }?;
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .map_err(|error| Error::Threads { threads, reason: error.to_string() })?;
        *workers = Box::into_raw(Box::new(kvcache_workers(Box::new(Pool(pool)))));
        Ok(())
    })
}

/// Makes workers of the caller's own `threads` threads (0 counts as 1); free them with kvcache_workers_free.
///
/// # Safety
/// `workers` is NULL or valid for writes. Until they are freed, `parallel_for` does as its type says, and can be called
/// with `context` from any thread and from several at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_workers_from(
    threads: usize,
    parallel_for: kvcache_parallel_for,
    context: *mut c_void,
    workers: *mut *mut kvcache_workers,
) -> *mut kvcache_error {
    guard(|| {
        // SAFETY: NULL or valid for writes.
        let workers = unsafe { result(workers, "workers") }?;
        let parallel_for = parallel_for.ok_or(Error::Null { argument: "parallel_for", expected: "a function" })?;
        let custom = Custom { threads: threads.max(1), context, parallel_for };
        *workers = Box::into_raw(Box::new(kvcache_workers(Box::new(custom))));
        Ok(())
    })
}

/// Frees workers; NULL is none. A pool's threads end.
///
/// # Safety
/// `workers` is NULL or has not been freed; no call uses it, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvcache_workers_free(workers: *mut kvcache_workers) {
    // SAFETY: made as a `Box` here, and nobody uses it again.
    unsafe { free(workers) }
}
