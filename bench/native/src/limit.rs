//! The limit of a case: a loop that reads and writes as many bytes as the case does, in the same ratio, and nothing
//! else.
//!
//! A copy of half the bytes is no limit where writes dominate, because memory takes longer to write than to read. So a
//! line is read, or written, whenever one is due by the ratio. Which order is fastest depends on the machine and on the
//! ratio: there are several, and the driver takes the fastest.

use std::iter::Sum;
use std::sync::OnceLock;

use kvcache_op::Workers;
use pyo3::prelude::*;

use crate::refused;
use crate::team::{Sample, Team};

/// Lines of a page.
const PAGE: usize = 4096 / LINE;

/// Measures the loop that reads a number of lines from one address and writes others to another, taking 1, 4 or 8
/// `pages` in turn, with non-temporal stores if `stream`; gives what one iteration has moved, too.
///
/// Python keeps the memory of both sides, which do not overlap, valid and to itself meanwhile; the side that is written
/// is aligned to a line.
#[pyfunction]
pub(crate) fn limit(
    team: &Team,
    pages: usize,
    stream: bool,
    source: (usize, usize),
    target: (usize, usize),
    iterations: usize,
) -> PyResult<(Sample, Moved)> {
    if ![1, 4, 8].contains(&pages) || !target.0.is_multiple_of(LINE) {
        return Err(refused(format!("expected 1, 4 or 8 pages and an aligned target, got {pages} and {}", target.0)));
    }
    let (from, to) = (source.0 as *const u8, target.0 as *mut u8);
    let limit = Limit { from, reads: source.1, to, writes: target.1, pages, stream };
    let mut moved = Moved::default();
    let sample = team.measure(iterations, || {
        // SAFETY: both sides are valid for the lines, and nobody else uses the target: this function's conditions.
        moved = unsafe { limit.run(team) };
        Ok::<_, PyErr>(())
    })?;
    Ok((sample, moved))
}

/// The two sides of the loop, and how it walks over them.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// What is read.
    from: *const u8,
    /// Lines that are read.
    reads: usize,
    /// What is written.
    to: *mut u8,
    /// Lines that are written.
    writes: usize,
    /// Pages that are taken in turn, a line of each: 4 or 8, or 1 for a walk in sequence.
    pages: usize,
    /// Whether lines are written with non-temporal stores.
    stream: bool,
}

// SAFETY: `run` splits both sides among its threads, and its caller has both to itself.
unsafe impl Sync for Limit {}

impl Limit {
    /// Runs the loop on the workers' threads, an equal part for each.
    ///
    /// # Safety
    /// `from` is valid for reads of `reads` lines and `to` for writes of `writes` lines; they do not overlap, and
    /// nobody else uses `to` meanwhile. `to` is aligned to a line.
    unsafe fn run(&self, workers: &dyn Workers) -> Moved {
        let threads = workers.threads();
        Moved::by_threads(workers, |thread| {
            let share = |lines: usize| lines * thread / threads..lines * (thread + 1) / threads;
            let (reads, writes) = (share(self.reads), share(self.writes));
            let part = Self {
                from: self.from.wrapping_add(reads.start * LINE),
                reads: reads.len(),
                to: self.to.wrapping_add(writes.start * LINE),
                writes: writes.len(),
                ..*self
            };
            // SAFETY: the part's lines are among those of `self`, and no other thread's.
            unsafe { part.run_part() }
        })
    }

    /// Runs the loop on this thread, with the widest lines that the processor has.
    ///
    /// # Safety
    /// The conditions of [`run`](Self::run).
    unsafe fn run_part(self) -> Moved {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512bw") {
            // SAFETY: AVX-512BW was detected (AVX-512F is part of it); memory as this function's caller guarantees.
            return unsafe { self.run_avx512() };
        }
        // SAFETY: nothing beyond the target's baseline is needed; memory as this function's caller guarantees.
        unsafe { self.specialized::<false>() }
    }

    /// # Safety
    /// The conditions of [`run`](Self::run); the processor has AVX-512BW.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn run_avx512(self) -> Moved {
        // SAFETY: the processor has AVX-512BW, and memory is as `run` says: both this function's conditions.
        unsafe { self.specialized::<true>() }
    }

    /// Chooses the loop that is compiled for the number of pages and the kind of store.
    ///
    /// # Safety
    /// The conditions of [`run`](Self::run), and: the processor has AVX-512F if `AVX512`.
    #[inline(always)]
    unsafe fn specialized<const AVX512: bool>(self) -> Moved {
        // SAFETY: this function's conditions are those of `walk`.
        unsafe {
            match (self.pages, self.stream) {
                (4, true) => self.walk::<AVX512, true, 4>(),
                (8, true) => self.walk::<AVX512, true, 8>(),
                (_, true) => self.walk::<AVX512, true, 1>(),
                (4, false) => self.walk::<AVX512, false, 4>(),
                (8, false) => self.walk::<AVX512, false, 8>(),
                (_, false) => self.walk::<AVX512, false, 1>(),
            }
        }
    }

    /// Walks over whole groups of `PAGES` pages of the larger side, then over what is left, in sequence.
    ///
    /// # Safety
    /// The conditions of [`specialized`](Self::specialized).
    #[inline(always)]
    unsafe fn walk<const AVX512: bool, const STREAM: bool, const PAGES: usize>(self) -> Moved {
        let mut rest = self;
        let mut sum = Line::ZERO;
        if PAGES > 1 {
            let mut turns = Turns::new(&self);
            for _ in 0..turns.steps / (PAGES * PAGE) {
                // SAFETY: a group takes its part of the lines that are left, no more.
                unsafe { turns.group::<AVX512, STREAM, PAGES>(&mut rest, PAGE, &mut sum) };
            }
        }
        let mut turns = Turns::new(&rest);
        let steps = turns.steps;
        // SAFETY: the lines that are left.
        unsafe { turns.group::<AVX512, STREAM, 1>(&mut rest, steps, &mut sum) };
        if STREAM {
            fence();
        }
        let moved = |lines: usize, left: usize| ((lines - left) * LINE) as u64;
        Moved(moved(self.reads, rest.reads), moved(self.writes, rest.writes), sum.sum())
    }
}

/// When a line is due on either side: with each step the larger side moves on by a line, the smaller by its part of
/// one.
struct Turns {
    /// Lines of the larger side.
    steps: usize,
    reads: usize,
    writes: usize,
    /// What has come together towards the next line of each side, in `steps`-ths of a line.
    due: [usize; 2],
}

impl Turns {
    fn new(limit: &Limit) -> Self {
        let Limit { reads, writes, .. } = *limit;
        Self { steps: reads.max(writes), reads, writes, due: [0, 0] }
    }

    /// Moves `steps` lines of the larger side in each of `PAGES` neighboring pages, and the lines of the smaller side
    /// that are due meanwhile, and takes them from `rest`. What is written is the line that was read last.
    ///
    /// # Safety
    /// The processor has AVX-512F if `AVX512`. `rest` has that many lines left, of which `to` is aligned to a line.
    #[inline(always)]
    unsafe fn group<const AVX512: bool, const STREAM: bool, const PAGES: usize>(
        &mut self,
        rest: &mut Limit,
        steps: usize,
        sum: &mut Line,
    ) {
        if steps == 0 {
            return;
        }
        // How many lines of each page are read and written.
        let reads = (self.due[0] + steps * self.reads) / self.steps;
        let writes = (self.due[1] + steps * self.writes) / self.steps;
        let (mut from, mut to) = (rest.from, rest.to);
        let mut lines = [Line::ZERO; PAGES];
        for _ in 0..steps {
            self.due[0] += self.reads;
            self.due[1] += self.writes;
            if self.due[0] >= self.steps {
                self.due[0] -= self.steps;
                for (page, line) in lines.iter_mut().enumerate() {
                    // SAFETY: a line is due `reads` times, and `PAGES * reads` lines are left.
                    *line = unsafe { Line::load(from.wrapping_add(page * reads * LINE)) };
                    *sum = sum.add(*line);
                }
                from = from.wrapping_add(LINE);
            }
            if self.due[1] >= self.steps {
                self.due[1] -= self.steps;
                for (page, line) in lines.into_iter().enumerate() {
                    // SAFETY: a line is due `writes` times, and `PAGES * writes` lines are left.
                    unsafe { line.put::<AVX512>(to.wrapping_add(page * writes * LINE), STREAM) };
                }
                to = to.wrapping_add(LINE);
            }
        }
        rest.from = rest.from.wrapping_add(PAGES * reads * LINE);
        rest.to = rest.to.wrapping_add(PAGES * writes * LINE);
        rest.reads -= PAGES * reads;
        rest.writes -= PAGES * writes;
    }
}

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// A line of 16-bit numbers, which compilers keep in the widest registers that a loop is compiled for.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Line([u16; LINE / 2]);

impl Line {
    /// Only zeros.
    pub(crate) const ZERO: Self = Self([0; LINE / 2]);

    /// The line at any address.
    ///
    /// # Safety
    /// `from` is valid for reads of a line.
    #[inline(always)]
    pub(crate) unsafe fn load(from: *const u8) -> Self {
        // SAFETY: `from` is valid for a line, at any address.
        Self(unsafe { from.cast::<[u16; LINE / 2]>().read_unaligned() })
    }

    /// Writes the line, with non-temporal stores if `stream` and the processor has such; with `AVX512`, one of the
    /// whole line.
    ///
    /// # Safety
    /// `to` is valid for writes of a line; with `stream` it is aligned to one. With `AVX512` the processor has AVX-512F.
    #[inline(always)]
    pub(crate) unsafe fn put<const AVX512: bool>(self, to: *mut u8, stream: bool) {
        #[cfg(target_arch = "x86_64")]
        if stream {
            use std::arch::x86_64::{__m128i, __m512i, _mm_stream_si128, _mm512_stream_si512};
            // SAFETY: `to` is valid for a line and aligned to one, and so is `self`; the instructions are there: this
            // function's conditions, and every x86-64 has SSE2.
            unsafe {
                if AVX512 {
                    _mm512_stream_si512(to.cast(), self.0.as_ptr().cast::<__m512i>().read());
                } else {
                    for i in 0..4 {
                        _mm_stream_si128(to.cast::<__m128i>().add(i), self.0.as_ptr().cast::<__m128i>().add(i).read());
                    }
                }
            }
            return;
        }
        let _ = stream;
        // SAFETY: `to` is valid for a line, at any address.
        unsafe { to.cast::<[u16; LINE / 2]>().write_unaligned(self.0) }
    }

    /// The sums of numbers at the same place, modulo 65536.
    #[inline(always)]
    pub(crate) fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].wrapping_add(other.0[i])))
    }

    /// The sum of all numbers, modulo 65536.
    pub(crate) fn sum(self) -> u64 {
        self.0.into_iter().fold(0_u16, u16::wrapping_add).into()
    }
}

/// Orders non-temporal stores before what follows.
#[inline(always)]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

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
