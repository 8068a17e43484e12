//! A thread that asks a store, so that nobody else waits for one that hangs.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Something to do.
pub(crate) type Job = Box<dyn FnOnce() + Send>;
/// So many jobs may wait in the background; more are dropped.
const MAX_BACKGROUND: usize = 1024;

/// A thread with a queue: what somebody waits for comes before what is done in the background.
pub(crate) struct Worker(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Until when somebody waits for each; those in the background come last.
    jobs: VecDeque<(Option<Instant>, Job)>,
    /// When the job that runs has begun.
    running: Option<Instant>,
    closed: bool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; none once the worker is closed.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue();
        queue.running = None;
        while !queue.closed {
            let now = Instant::now();
            match queue.jobs.pop_front() {
                // Nobody waits any more.
                Some((Some(end), _)) if end <= now => {}
                Some((_, job)) => {
                    queue.running = Some(now);
                    return Some(job);
                }
                None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
        None
    }
}

impl Worker {
    pub(crate) fn spawn(name: String) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = shared.clone();
        thread::Builder::new().name(name).spawn(move || {
            while let Some(job) = of_thread.next() {
                job();
            }
        })?;
        Ok(Self(shared))
    }

    /// Queues a job that somebody waits for until `end`. Whether it is queued: not if the one that runs has been
    /// running for longer than `deadline`.
    pub(crate) fn submit(&self, job: Job, end: Instant, deadline: Duration) -> bool {
        let mut queue = self.0.queue();
        if queue.closed || queue.running.is_some_and(|since| since.elapsed() >= deadline) {
            return false;
        }
        let awaited = queue.jobs.partition_point(|job| job.0.is_some());
        queue.jobs.insert(awaited, (Some(end), job));
        self.0.changed.notify_one();
        true
    }

    /// Queues a job that nobody waits for, unless many are queued already.
    pub(crate) fn submit_background(&self, job: Job) {
        let mut queue = self.0.queue();
        if !queue.closed && queue.jobs.len() < MAX_BACKGROUND {
            queue.jobs.push_back((None, job));
            self.0.changed.notify_one();
        }
    }

    /// Drops what is queued. The thread ends with the job that it runs.
    pub(crate) fn close(&self) {
        let mut queue = self.0.queue();
        queue.closed = true;
        let dropped = std::mem::take(&mut queue.jobs);
        drop(queue);
        drop(dropped);
        self.0.changed.notify_one();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}
