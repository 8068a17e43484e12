//! The roofline of a case: a loop that reads and writes as many bytes as the case does, in the same ratio, and nothing
//! else.
//!
//! A copy of half the bytes is no limit where writes dominate, because memory takes longer to write than to read. So:
//!
//! ```text
//! each thread, of its part of both sides, in STREAMS equal parts:
//!     for each line of the larger side:
//!         if a line to read is due by the ratio: read a line of each part
//!         if a line to write is due: write the lines that were read last, one to each part
//! ```
//!
//! How many streams are fastest depends on the machine and on the ratio: there are several, and the driver takes the
//! fastest.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

use crate::calls::Threads;
use crate::refused;

/// Bytes of a cache line.
const LINE: usize = 64;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; LINE / 8]);

/// The loop on memory of Python's. Reads and writes are lines, and a multiple of `threads * streams`.
#[pyclass(unsendable)]
pub(crate) struct Roofline {
    threads: Threads,
    count: usize,
    streams: usize,
    non_temporal: bool,
}

#[pymethods]
impl Roofline {
    #[new]
    fn new(threads: usize, streams: usize, non_temporal: bool) -> PyResult<Self> {
        Ok(Self { threads: Threads::new(threads)?, count: threads, streams, non_temporal })
    }

    /// Reads so many lines from one address and writes others to another; gives the sum, modulo 2^64, of all that was
    /// read as 64-bit numbers.
    ///
    /// Python keeps the memory of both sides, which are aligned to a line and do not overlap, valid and to itself.
    fn run(&self, from: usize, reads: usize, to: usize, writes: usize) -> PyResult<u64> {
        let parts = self.count * self.streams;
        if [from % LINE, to % LINE, reads % parts, writes % parts] != [0; 4] {
            return Err(refused(format!(
                "{reads} and {writes} lines at {from} and {to} are not {parts} aligned parts"
            )));
        }
        let walk = match (self.streams, self.non_temporal) {
            (1, false) => walk::<1, false>,
            (1, true) => walk::<1, true>,
            (4, false) => walk::<4, false>,
            (4, true) => walk::<4, true>,
            (8, false) => walk::<8, false>,
            (8, true) => walk::<8, true>,
            _ => return Err(refused(format!("{} streams", self.streams))),
        };
        let sum = AtomicU64::new(0);
        let (reads, writes) = (reads / self.count, writes / self.count);
        self.threads.run(|workers| {
            workers.run(self.count, &|thread| {
                let from = (from as *const Line).wrapping_add(thread * reads);
                let to = (to as *mut Line).wrapping_add(thread * writes);
                // SAFETY: both sides are valid for their lines, aligned, and nobody else's: this function's conditions;
                // a thread has its own part of each.
                sum.fetch_add(unsafe { walk(from, reads, to, writes) }, Ordering::Relaxed);
            });
        });
        Ok(sum.into_inner())
    }
}

/// Reads and writes lines of `STREAMS` parts in turn; gives the sum of what was read.
///
/// # Safety
/// `from` is valid for reads of `reads` lines, `to` for writes of `writes`; both are multiples of `STREAMS`.
unsafe fn walk<const STREAMS: usize, const NON_TEMPORAL: bool>(
    from: *const Line,
    reads: usize,
    to: *mut Line,
    writes: usize,
) -> u64 {
    let (reads, writes) = (reads / STREAMS, writes / STREAMS);
    let steps = reads.max(writes);
    // A line is read before one is written.
    let (mut read, mut written, mut due_reads, mut due_writes) = (0, 0, steps - reads, 0);
    let mut lines = [Line([0; LINE / 8]); STREAMS];
    let mut sums = [0_u64; LINE / 8];
    for _ in 0..steps {
        due_reads += reads;
        if due_reads >= steps {
            due_reads -= steps;
            for (part, line) in lines.iter_mut().enumerate() {
                // SAFETY: a line is due `reads` times, so part * reads + read < STREAMS * reads.
                *line = unsafe { from.add(part * reads + read).read() };
                sums.iter_mut().zip(line.0).for_each(|(sum, number)| *sum = sum.wrapping_add(number));
            }
            read += 1;
        }
        due_writes += writes;
        if due_writes >= steps {
            due_writes -= steps;
            for (part, line) in lines.iter().enumerate() {
                // SAFETY: a line is due `writes` times, so part * writes + written < STREAMS * writes.
                unsafe { put::<NON_TEMPORAL>(line, to.add(part * writes + written)) };
            }
            written += 1;
        }
    }
    #[cfg(target_arch = "x86_64")]
    if NON_TEMPORAL {
        // SAFETY: every x86-64 has SSE.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
    black_box(sums).into_iter().fold(0, u64::wrapping_add)
}

/// Writes a line, if wanted and the processor has such with non-temporal stores.
///
/// # Safety
/// `to` is valid for writes of a line.
#[inline(always)]
unsafe fn put<const NON_TEMPORAL: bool>(line: &Line, to: *mut Line) {
    #[cfg(target_arch = "x86_64")]
    if NON_TEMPORAL {
        use std::arch::x86_64::{__m128i, _mm_stream_si128};
        for i in 0..LINE / size_of::<__m128i>() {
            // SAFETY: both are lines, aligned as `Line` is, and every x86-64 has SSE2.
            unsafe {
                _mm_stream_si128(to.cast::<__m128i>().add(i), (&raw const *line).cast::<__m128i>().add(i).read())
            };
        }
        return;
    }
    // SAFETY: `to` is valid for writes of a line.
    unsafe { to.write(*line) }
}
