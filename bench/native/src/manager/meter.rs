//! Time and allocations of the stretches of work that count.

use crate::allocations::allocations;
use crate::sample::Clocks;

/// What some operations took, without the work between them that only prepares.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Meter {
    /// Wall-clock nanoseconds.
    pub wall_ns: u64,
    /// Nanoseconds for which the calling thread held a processor.
    pub cpu_ns: u64,
    /// Heap allocations of the calling thread.
    pub allocations: u64,
    /// The operations.
    pub operations: u64,
}

impl Meter {
    /// Runs so many operations, and counts what they take.
    pub(crate) fn run<T>(&mut self, operations: usize, work: impl FnOnce() -> T) -> T {
        let (before, clocks) = (allocations(), Clocks::start());
        let result = work();
        let (wall_ns, cpu_ns) = clocks.elapsed();
        self.wall_ns += wall_ns;
        self.cpu_ns += cpu_ns;
        self.allocations += allocations() - before;
        self.operations += operations as u64;
        result
    }
}
