//! The threads of a call: a pool of the library's, or the caller's own.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;

use kvcache_op::{Rayon, Serial, Workers};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, free, guard, kvcache_error, result};

/// The threads that calls use. Several calls may use it at once.
pub struct kvcache_workers(Threads);

enum Threads {
    /// A pool of the library's.
    Pool(Pool),
    /// The caller's own.
    Custom(Custom),
}

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
            Some(Self(Threads::Pool(pool))) => pool,
            Some(Self(Threads::Custom(custom))) => custom,
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

/// What a task needs: the kernel's own, and a place for the first panic.
struct Argument<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Runs one part; a panic is kept, since none may reach C.
///
/// # Safety
/// `argument` is an [`Argument`].
unsafe extern "C" fn run_task(argument: *mut c_void, index: usize) {
    // SAFETY: `Custom::run` passes an `Argument`, which lives until all tasks have ended.
    let argument = unsafe { &*argument.cast_const().cast::<Argument<'_>>() };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (argument.task)(index)))
        && let Ok(mut first) = argument.panic.lock()
    {
        first.get_or_insert(panic);
    }
}

impl Workers for Custom {
    fn threads(&self) -> usize {
        self.threads
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let argument = Argument { task, panic: Mutex::new(None) };
        let address = (&raw const argument).cast_mut().cast();
        // SAFETY: `kvcache_workers_from`: the function calls `run_task` with this argument, and returns when all calls
        // have ended.
        unsafe { (self.parallel_for)(self.context, tasks, run_task, address) };
        if let Ok(Some(panic)) = argument.panic.into_inner() {
            resume_unwind(panic);
        }
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
        *workers = Box::into_raw(Box::new(kvcache_workers(Threads::Pool(Pool(pool)))));
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
        *workers = Box::into_raw(Box::new(kvcache_workers(Threads::Custom(custom))));
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
