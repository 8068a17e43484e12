//! What a loop without arithmetic has moved, for Python to compare with what the case must move.

use std::iter::Sum;
use std::sync::OnceLock;

use kvcache_op::Workers;
use pyo3::prelude::*;

/// What was read and written, as a named tuple of Python's would say it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, IntoPyObject)]
pub(crate) struct Moved(
    /// Bytes that were read.
    pub(crate) u64,
    /// Bytes that were written.
    pub(crate) u64,
    /// The sum, modulo 65536, of all that was read as 16-bit numbers.
    pub(crate) u64,
);

impl Sum for Moved {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |all, part| Self(all.0 + part.0, all.1 + part.1, (all.2 + part.2) % (1 << 16)))
    }
}

impl Moved {
    /// What the workers' threads move, where `part` is what one of them does.
    pub(crate) fn by_threads(workers: &dyn Workers, part: impl Fn(usize) -> Self + Sync) -> Self {
        let threads = workers.threads();
        let parts: Vec<_> = (0..threads).map(|_| OnceLock::new()).collect();
        workers.run(threads, &|thread| {
            parts[thread].get_or_init(|| part(thread));
        });
        parts.into_iter().filter_map(OnceLock::into_inner).sum()
    }
}
