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

/// A thread with two queues: what somebody waits for comes before what is done in the background.
pub(crate) struct Worker(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    changed: Condvar,
}

#[derive(Default)]
struct Queues {
    awaited: VecDeque<(Instant, Job)>,
    background: VecDeque<Job>,
    /// When the job that runs has begun.
    running: Option<Instant>,
    closed: bool,
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; none once the worker is closed.
    fn next(&self) -> Option<Job> {
        let mut queues = self.queues();
        queues.running = None;
        loop {
            if queues.closed {
                return None;
            }
            let now = Instant::now();
            // Nobody waits any more for those whose time is over.
            let job = loop {
                match queues.awaited.pop_front() {
                    Some((end, _)) if end <= now => {}
                    Some((_, job)) => break Some(job),
                    None => break queues.background.pop_front(),
                }
            };
            if job.is_some() {
                queues.running = Some(now);
                return job;
            }
            queues = self.changed.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
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

    /// Queues a job that somebody waits for until `end`. Whether it is queued: not if the one that runs has been running
    /// for longer than `deadline`.
    pub(crate) fn submit(&self, job: Job, end: Instant, deadline: Duration) -> bool {
        let mut queues = self.0.queues();
        if queues.closed || queues.running.is_some_and(|since| since.elapsed() >= deadline) {
            return false;
        }
        queues.awaited.push_back((end, job));
        self.0.changed.notify_one();
        true
    }

    /// Queues a job that nobody waits for, unless many are queued already.
    pub(crate) fn submit_background(&self, job: Job) {
        let mut queues = self.0.queues();
        if !queues.closed && queues.background.len() < MAX_BACKGROUND {
            queues.background.push_back(job);
            self.0.changed.notify_one();
        }
    }

    /// Drops what is queued. The thread ends with the job that it runs.
    pub(crate) fn close(&self) {
        let mut queues = self.0.queues();
        queues.closed = true;
        let dropped = (std::mem::take(&mut queues.awaited), std::mem::take(&mut queues.background));
        drop(queues);
        drop(dropped);
        self.0.changed.notify_one();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}
