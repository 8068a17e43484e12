//! What one measurement gives.

use std::time::Instant;

/// Time spent on some iterations.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Wall-clock nanoseconds of all iterations.
    pub wall_ns: u64,
    /// The part of the threads' time in which they held a processor: 1 unless others took it.
    pub share: f64,
}

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
