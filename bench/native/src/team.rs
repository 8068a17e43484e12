//! The threads that a measurement runs on, and their clocks.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use kvcache_op::{Serial, Workers};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Nanoseconds of one iteration, and the part of the threads' time in which they held a processor: 1 unless others took
/// it.
pub(crate) type Sample = (f64, f64);

/// A thread's wall clock and processor clock, running.
pub(crate) struct Clocks {
    wall: Instant,
    cpu_ns: u64,
}

impl Clocks {
    /// Starts the calling thread's clocks.
    pub(crate) fn start() -> Self {
        Self { wall: Instant::now(), cpu_ns: thread_cpu_ns() }
    }

    /// Nanoseconds since the start: of the wall clock, and those in which this thread held a processor.
    pub(crate) fn elapsed(&self) -> (u64, u64) {
        let cpu_ns = thread_cpu_ns() - self.cpu_ns;
        (self.wall.elapsed().as_nanos() as u64, cpu_ns)
    }
}

/// Nanoseconds for which the calling thread has held a processor.
fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Linux, and the structure is ours.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    debug_assert_eq!(status, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Threads that wait between measurements, and count how long they work and how long they hold a processor meanwhile.
///
/// A thread that must share its processor makes two threads look no faster than one; the count shows it.
#[pyclass(frozen)]
pub(crate) struct Team {
    /// None is the calling thread alone.
    pool: Option<ThreadPool>,
    wall_ns: AtomicU64,
    cpu_ns: AtomicU64,
}

#[pymethods]
impl Team {
    /// A team of `threads`, each on a processor of its own as far as there are as many; a single one is the caller's
    /// thread.
    #[new]
    fn new(threads: usize) -> io::Result<Self> {
        let build = || ThreadPoolBuilder::new().num_threads(threads).build().map_err(io::Error::other);
        let pool = (threads > 1).then(build).transpose()?;
        if let Some(pool) = &pool {
            let processors = allowed_processors()?;
            let pinned = pool.broadcast(|thread| pin_to(processors[thread.index() % processors.len()]));
            pinned.into_iter().collect::<io::Result<()>>()?;
        }
        Ok(Self { pool, wall_ns: AtomicU64::new(0), cpu_ns: AtomicU64::new(0) })
    }
}

impl Team {
    /// Measures `iterations` of `work`, which may use the team's threads through [`Workers`].
    pub(crate) fn measure<E>(&self, iterations: usize, mut work: impl FnMut() -> Result<(), E>) -> Result<Sample, E> {
        self.wall_ns.store(0, Ordering::Relaxed);
        self.cpu_ns.store(0, Ordering::Relaxed);
        let clocks = Clocks::start();
        for _ in 0..iterations {
            work()?;
        }
        let (wall_ns, cpu_ns) = clocks.elapsed();
        // Work that no thread of the team was asked for was done on this one.
        let (worked, held) = match self.wall_ns.load(Ordering::Relaxed) {
            0 => (wall_ns, cpu_ns),
            team_ns => (team_ns, self.cpu_ns.load(Ordering::Relaxed)),
        };
        Ok((wall_ns as f64 / iterations as f64, held as f64 / worked.max(1) as f64))
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
    // SAFETY: zeros are an empty set, and `allowed_processors` gives numbers less than the set's size.
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
