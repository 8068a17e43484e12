//! The threads that a measurement runs on.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use kvcache_op::{Serial, Workers};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::moved::Moved;
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
    /// A team of `threads`, each on a processor of its own as far as there are as many; a single one is the caller's
    /// thread.
    ///
    /// # Errors
    /// If threads cannot be started, or cannot be pinned to their processors.
    pub fn new(threads: usize) -> io::Result<Self> {
        let build = || ThreadPoolBuilder::new().num_threads(threads).build().map_err(io::Error::other);
        let pool = (threads > 1).then(build).transpose()?;
        if let Some(pool) = &pool {
            let processors = allowed_processors()?;
            let pinned = pool.broadcast(|thread| pin_to(processors[thread.index() % processors.len()]));
            pinned.into_iter().collect::<io::Result<()>>()?;
        }
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

    /// Measures `iterations` of a loop that says what it has moved, and keeps what the last one says.
    pub(crate) fn measure_moved(
        &self,
        iterations: usize,
        mut work: impl FnMut() -> Result<Moved, String>,
    ) -> Result<(Sample, Moved), String> {
        let mut last = Ok(Moved::default());
        let sample = self.measure(iterations, || last = work());
        last.map(|moved| (sample, moved))
    }
}

/// The processors that this process may use.
fn allowed_processors() -> io::Result<Vec<usize>> {
    // SAFETY: a set of processors is a bit mask, for which zeros are valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as large as the call is told.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number is less than the set's size.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&i| unsafe { libc::CPU_ISSET(i, &set) }).collect())
}

/// Keeps the calling thread on a processor.
fn pin_to(processor: usize) -> io::Result<()> {
    // SAFETY: as in `allowed_processors`, whose numbers are less than the set's size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        set
    };
    // SAFETY: the set is as large as the call is told.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Workers for Team {
    fn threads(&self) -> usize {
        self.pool.as_ref().map_or(1, ThreadPool::current_num_threads)
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let Some(pool) = &self.pool else { return Serial.run(tasks, task) };
        // Task i to thread i: a thread that is slow to wake finds its own task still waiting, as it does in the limit's
        // loop.
        pool.broadcast(|thread| {
            let clocks = Clocks::start();
            (thread.index()..tasks).step_by(thread.num_threads()).for_each(task);
            let (wall_ns, cpu_ns) = clocks.elapsed();
            self.wall_ns.fetch_add(wall_ns, Ordering::Relaxed);
            self.cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
        });
    }
}
