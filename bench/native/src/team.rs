//! The threads that a measurement runs on.

use std::sync::atomic::{AtomicU64, Ordering};

use kvcache_op::{Serial, Workers};
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use crate::sample::{Clocks, Sample};

/// Threads that wait between measurements, and count how long they work and how long they hold a processor meanwhile.
///
/// A thread that must share its processor makes two threads look no faster than one; the count shows it.
pub struct Team {
    /// None is the calling thread alone.
    pool: Option<ThreadPool>,
    wall_ns: AtomicU64,
    cpu_ns: AtomicU64,
}

impl Team {
    /// A team of `threads`, of which a single one is the caller's.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub fn new(threads: usize) -> Result<Self, ThreadPoolBuildError> {
        let pool = (threads > 1).then(|| ThreadPoolBuilder::new().num_threads(threads).build()).transpose()?;
        Ok(Self { pool, wall_ns: AtomicU64::new(0), cpu_ns: AtomicU64::new(0) })
    }

    /// Measures `iterations` of `work`, which may use the team's threads through [`Workers`].
    pub(crate) fn measure(&self, iterations: usize, mut work: impl FnMut()) -> Sample {
        self.wall_ns.store(0, Ordering::Relaxed);
        self.cpu_ns.store(0, Ordering::Relaxed);
        let clocks = Clocks::start();
        for _ in 0..iterations {
            work();
        }
        let (wall_ns, cpu_ns) = clocks.elapsed();
        // Work that no thread of the team was asked for was done on this one.
        let (worked, held) = match self.wall_ns.load(Ordering::Relaxed) {
            0 => (wall_ns, cpu_ns),
            team_ns => (team_ns, self.cpu_ns.load(Ordering::Relaxed)),
        };
        Sample { wall_ns, share: held as f64 / worked.max(1) as f64 }
    }
}

impl Workers for Team {
    fn threads(&self) -> usize {
        self.pool.as_ref().map_or(1, ThreadPool::current_num_threads)
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let Some(pool) = &self.pool else { return Serial.run(tasks, task) };
        // Task i to thread i: a thread that is slow to wake finds its own task still waiting, as it does in a copy.
        pool.broadcast(|thread| {
            let clocks = Clocks::start();
            (thread.index()..tasks).step_by(thread.num_threads()).for_each(task);
            let (wall_ns, cpu_ns) = clocks.elapsed();
            self.wall_ns.fetch_add(wall_ns, Ordering::Relaxed);
            self.cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
        });
    }
}
