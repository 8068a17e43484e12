//! Copies of rows, by lines.

use super::prefetch::{LINE, prefetch, prefetch_row};
use super::simd::Simd;
use super::variant::Task;

/// Bytes from which on one plain copy is left to the C library, which knows the processor's own instruction for it.
const LIBRARY_BYTES: usize = 16 << 10;

/// Lines that are read before they are written, so that reads and writes come in bursts.
const BURST: usize = 4;

/// Rows of bytes that are copied.
#[derive(Clone, Copy)]
pub(super) struct Copies {
    /// The first row.
    pub(super) from: *const u8,
    /// From one row to the next.
    pub(super) from_row: usize,
    /// Where the first row's copies go, one behind the other.
    pub(super) to: *mut u8,
    /// From the copies of one row to those of the next.
    pub(super) to_row: usize,
    /// Bytes of a row.
    pub(super) len: usize,
    /// The number of rows.
    pub(super) rows: usize,
    /// The number of copies of each.
    pub(super) copies: usize,
    /// From a row to the bytes that are asked for meanwhile, which may lie anywhere.
    pub(super) ahead: Option<isize>,
}

impl Copies {
    /// One row.
    pub(super) fn one(from: *const u8, to: *mut u8, len: usize, copies: usize) -> Self {
        Self { from, from_row: 0, to, to_row: 0, len, rows: 1, copies, ahead: None }
    }

    /// Row `r`: where it is, where its copies go, and what is asked for meanwhile.
    ///
    /// # Safety
    /// There are more than `r` rows, in valid memory.
    #[inline(always)]
    pub(super) unsafe fn row(&self, r: usize) -> (*const u8, *mut u8, Option<*const u8>) {
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (self.from.add(r * self.from_row), self.to.add(r * self.to_row)) };
        (from, to, self.ahead.map(|ahead| from.wrapping_offset(ahead)))
    }
}

/// Copies rows, past the caches if `STREAM`. Every row is valid for reads, and its copies for writes; they do not overlap.
pub(super) struct CopyRows<'a, const STREAM: bool>(pub(super) &'a Copies);

impl<const STREAM: bool> Task for CopyRows<'_, STREAM> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self(all) = self;
        // SAFETY: the caller's promise.
        unsafe { if all.copies == 1 { each::<S, STREAM>(all, 1) } else { each::<S, STREAM>(all, all.copies) } }
    }
}

/// Copies rows, of whose `copies` the compiler may know how many they are.
#[inline(always)]
unsafe fn each<S: Simd, const STREAM: bool>(all: &Copies, copies: usize) {
    for r in 0..all.rows {
        // SAFETY: the caller's promise.
        unsafe {
            let (from, to, ahead) = all.row(r);
            if STREAM {
                stream::<S>(from, to, all.len, copies, ahead);
            } else {
                copy::<S>(from, to, all.len, copies, ahead);
            }
        }
    }
}

/// Writes neighboring copies of `len` bytes. Meanwhile asks for as many bytes at `ahead`, which may be any address.
#[inline(always)]
unsafe fn copy<S: Simd>(from: *const u8, to: *mut u8, len: usize, copies: usize, ahead: Option<*const u8>) {
    // SAFETY: the caller's promise; every line lies inside the row, and a copy begins where the one before it ends.
    unsafe {
        if len < LINE || (len >= LIBRARY_BYTES && copies == 1) {
            if let Some(ahead) = ahead {
                prefetch_row(ahead, len);
            }
            for r in 0..copies {
                let to = to.add(r * len);
                match len {
                    0 => (),
                    1 => to.write(from.read()),
                    2..4 => ends::<u16>(from, to, len),
                    4..8 => ends::<u32>(from, to, len),
                    8..16 => ends::<u64>(from, to, len),
                    16..32 => ends::<[u64; 2]>(from, to, len),
                    32..LINE => ends::<[u64; 4]>(from, to, len),
                    _ => to.copy_from_nonoverlapping(from, len),
                }
            }
            return;
        }
        match ahead {
            Some(ahead) => lines::<S, false, true>(from, to, len, copies, ahead),
            None => lines::<S, false, false>(from, to, len, copies, from),
        }
        if !len.is_multiple_of(LINE) {
            let last = S::read_line(from.add(len - LINE));
            for r in 1..=copies {
                S::write_line(to.add(r * len - LINE), last);
            }
        }
    }
}

/// Copies `len` bytes, at least as many as T and at most twice as many, as their first and their last ones.
#[inline(always)]
unsafe fn ends<T>(from: *const u8, to: *mut u8, len: usize) {
    let last = len - size_of::<T>();
    // SAFETY: the caller's promise; both lie inside the row.
    unsafe {
        let (a, b) = (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
        to.cast::<T>().write_unaligned(a);
        to.add(last).cast::<T>().write_unaligned(b);
    }
}

/// As [`copy`], whole lines past the caches.
#[inline(always)]
unsafe fn stream<S: Simd>(from: *const u8, to: *mut u8, len: usize, copies: usize, ahead: Option<*const u8>) {
    // SAFETY: the caller's promise; every line lies inside the row, and a copy begins where the one before it ends.
    unsafe {
        if to.align_offset(LINE) == 0 && len.is_multiple_of(LINE) {
            return match ahead {
                Some(ahead) => lines::<S, true, true>(from, to, len, copies, ahead),
                None => lines::<S, true, false>(from, to, len, copies, from),
            };
        }
        if len < LINE {
            return copy::<S>(from, to, len, copies, ahead);
        }
        if let Some(ahead) = ahead {
            prefetch_row(ahead, len);
        }
        for r in 0..copies {
            let to = to.add(r * len);
            let head = to.align_offset(LINE).min(len);
            let whole = (len - head) / LINE * LINE;
            copy::<S>(from, to, head, 1, None);
            lines::<S, true, false>(from.add(head), to.add(head), whole, 1, from);
            copy::<S>(from.add(head + whole), to.add(head + whole), len - head - whole, 1, None);
        }
    }
}

/// Writes the whole lines of neighboring copies of `len` bytes. If it streams, every copy is whole lines, and aligned.
#[inline(always)]
unsafe fn lines<S: Simd, const STREAM: bool, const AHEAD: bool>(
    from: *const u8,
    to: *mut u8,
    len: usize,
    copies: usize,
    ahead: *const u8,
) {
    // SAFETY: the caller's promise; every line lies inside the row.
    unsafe {
        let mut i = 0;
        while i + BURST * LINE <= len {
            let mut lines = [S::read_line(from.add(i)); BURST];
            for (k, line) in lines.iter_mut().enumerate().skip(1) {
                *line = S::read_line(from.add(i + k * LINE));
            }
            if AHEAD {
                for k in 0..BURST {
                    prefetch(ahead.wrapping_add(i + k * LINE));
                }
            }
            for r in 0..copies {
                for (k, line) in lines.into_iter().enumerate() {
                    write::<S, STREAM>(to.add(r * len + i + k * LINE), line);
                }
            }
            i += BURST * LINE;
        }
        while i + LINE <= len {
            let line = S::read_line(from.add(i));
            if AHEAD {
                prefetch(ahead.wrapping_add(i));
            }
            for r in 0..copies {
                write::<S, STREAM>(to.add(r * len + i), line);
            }
            i += LINE;
        }
    }
}

/// Writes a line, past the caches or not.
#[inline(always)]
unsafe fn write<S: Simd, const STREAM: bool>(to: *mut u8, line: S::Line) {
    // SAFETY: the caller's promise.
    unsafe { if STREAM { S::stream_line(to, line) } else { S::write_line(to, line) } }
}
