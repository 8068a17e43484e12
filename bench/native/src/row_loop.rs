//! Rows of cache lines, moved and counted.

use crate::line::{LINE, Line, prefetch};

/// Lines that are read before any is written.
const BURST: usize = 4;

/// Instead of a number of lines that is known at compile time: as many as the plan says.
pub(crate) const ANY: usize = 0;

/// A mask that leaves only finite numbers: masked, a line holds float16 or float32 values from 0 to 2.
const FINITE: u16 = 0x3fff;

/// Moves rows, and counts what it reads and writes.
pub(crate) struct RowLoop<const AVX512: bool, const STREAM: bool, const WRITES: usize> {
    /// The sums of all that was read, as 16-bit numbers, by their place in a line.
    pub(crate) sum: Line,
    /// The line that was read last.
    pub(crate) last: Line,
    /// Bytes that were read.
    pub(crate) read: u64,
    /// Bytes that were written.
    pub(crate) written: u64,
}

impl<const AVX512: bool, const STREAM: bool, const WRITES: usize> RowLoop<AVX512, STREAM, WRITES> {
    /// A loop that has not moved anything.
    pub(crate) fn new() -> Self {
        Self { sum: Line::ZERO, last: Line::ZERO, read: 0, written: 0 }
    }

    /// Reads whole lines and writes others, so many of each in turn; prefetches lines `ahead` bytes from those it
    /// reads.
    ///
    /// # Safety
    /// The processor has AVX-512F if `AVX512`; `from` is valid for reads and `to`, aligned to a line, for writes of
    /// `steps` times so many lines.
    #[inline(always)]
    pub(crate) unsafe fn lines(&mut self, turns: [usize; 2], steps: usize, from: *const u8, to: *mut u8, ahead: isize) {
        let [reads, writes] = if WRITES == ANY { turns } else { [1, WRITES] };
        self.read += (steps * reads * LINE) as u64;
        self.written += (steps * writes * LINE) as u64;
        let whole = steps / BURST * BURST;
        let at = |i: usize| (from.wrapping_add(i * reads * LINE), to.wrapping_add(i * writes * LINE));
        for i in (0..whole).step_by(BURST) {
            // SAFETY: `i + BURST <= whole <= steps`, so the burst's lines are among those this function requires.
            unsafe { self.burst::<BURST>(reads, writes, at(i), ahead) };
        }
        for i in whole..steps {
            // SAFETY: `i < steps`: the same for one line of each turn.
            unsafe { self.burst::<1>(reads, writes, at(i), ahead) };
        }
    }

    /// # Safety
    /// As for [`lines`](Self::lines), with `N` steps.
    #[inline(always)]
    unsafe fn burst<const N: usize>(
        &mut self,
        reads: usize,
        writes: usize,
        (from, to): (*const u8, *mut u8),
        ahead: isize,
    ) {
        let mut lines = [self.last; N];
        for (i, line) in lines.iter_mut().enumerate() {
            for k in 0..reads {
                let at = from.wrapping_add((i * reads + k) * LINE);
                // SAFETY: `i < N` and `k < reads`: one of the `N * reads` lines that `from` is valid for.
                *line = unsafe { Line::load(at) };
                self.sum = self.sum.add(*line);
                if STREAM {
                    prefetch(at.wrapping_offset(ahead));
                }
            }
        }
        self.last = lines[N - 1];
        for (i, line) in lines.into_iter().enumerate() {
            let line = line.and(FINITE);
            for k in 0..writes {
                // SAFETY: `i < N` and `k < writes`: one of the `N * writes` lines that `to` is valid for.
                unsafe { line.put::<AVX512>(to.wrapping_add((i * writes + k) * LINE), STREAM) };
            }
        }
    }

    /// Reads any even number of bytes, and prefetches as many that lie `ahead` bytes from them.
    ///
    /// # Safety
    /// The processor has AVX-512F if `AVX512`; `from` is valid for reads.
    #[inline(always)]
    pub(crate) unsafe fn read(&mut self, from: *const u8, len: usize, ahead: isize) {
        self.read += len as u64;
        for at in (0..if STREAM { len } else { 0 }).step_by(LINE) {
            prefetch(from.wrapping_add(at).wrapping_offset(ahead));
        }
        let whole = len / LINE * LINE;
        for at in (0..whole).step_by(LINE) {
            // SAFETY: `at + LINE <= whole <= len`.
            self.sum = self.sum.add(unsafe { Line::load(from.add(at)) });
        }
        if whole < len {
            // SAFETY: `len - whole` bytes are left, fewer than a line.
            self.sum = self.sum.add(unsafe { Line::load_part(from.add(whole), len - whole) });
        }
    }

    /// Writes any even number of bytes, of the line that was read last.
    ///
    /// # Safety
    /// The processor has AVX-512F if `AVX512`; `to` is valid for writes.
    #[inline(always)]
    pub(crate) unsafe fn write(&mut self, to: *mut u8, len: usize) {
        self.written += len as u64;
        let line = self.last.and(FINITE);
        let stream = STREAM && to.align_offset(LINE) == 0;
        let whole = len / LINE * LINE;
        for at in (0..whole).step_by(LINE) {
            // SAFETY: `at + LINE <= whole <= len`; `stream` only where `to` is aligned to a line.
            unsafe { line.put::<AVX512>(to.add(at), stream) };
        }
        if whole < len {
            // SAFETY: `len - whole` bytes are left, fewer than a line.
            unsafe { line.put_part(to.add(whole), len - whole) };
        }
    }
}
