//! Copies of rows, line by line.

use super::super::block::Copies;
use super::group::Groups;
use super::outline::RowFunction;
use super::prefetch::LINE;
use super::simd::Simd;

/// Bytes from which on one plain copy is left to the C library, which knows the processor's own instruction for it.
const LIBRARY_BYTES: usize = 16 << 10;

/// Lines that are read before they are written, so that reads and writes come in bursts.
const BURST: usize = 4;

/// Copies rows by plain stores.
pub(crate) struct CopyRows;

/// Copies rows by non-temporal stores: the copies are whole lines, at line-aligned addresses. Rows may be at any
/// address.
pub(crate) struct StreamRows;

impl RowFunction for CopyRows {
    type Rows = Copies;

    #[inline(always)]
    unsafe fn run<S: Groups>(all: &Copies) {
        // One copy, the common case, is known to the compiler.
        // SAFETY: the same conditions.
        unsafe { if all.copies == 1 { copy_rows::<S>(all, 1) } else { copy_rows::<S>(all, all.copies) } }
    }
}

impl RowFunction for StreamRows {
    type Rows = Copies;

    #[inline(always)]
    unsafe fn run<S: Groups>(all: &Copies) {
        // One copy, the common case, is known to the compiler.
        // SAFETY: the same conditions.
        unsafe { if all.copies == 1 { stream_rows::<S>(all, 1) } else { stream_rows::<S>(all, all.copies) } }
    }
}

#[inline(always)]
unsafe fn copy_rows<S: Simd>(all: &Copies, copies: usize) {
    for r in 0..all.rows {
        // SAFETY: r < rows, so this is one of the caller's rows.
        unsafe {
            let (from, to) = (all.from.add(r * all.from_step), all.to.add(r * all.to_step));
            copy::<S>(from, to, all.len, copies, all.prefetch.map(|ahead| from.wrapping_offset(ahead)));
        }
    }
}

#[inline(always)]
unsafe fn stream_rows<S: Simd>(all: &Copies, copies: usize) {
    for r in 0..all.rows {
        // SAFETY: r < rows, so this is one of the caller's rows, and its copies are whole aligned lines.
        unsafe {
            let (from, to) = (all.from.add(r * all.from_step), all.to.add(r * all.to_step));
            match all.prefetch {
                Some(ahead) => lines::<S, true, true>(from, to, all.len, copies, from.wrapping_offset(ahead)),
                None => lines::<S, true, false>(from, to, all.len, copies, from),
            }
        }
    }
}

/// Writes copies of `len` bytes, one after the other, and prefetches as many bytes at `ahead`.
#[inline(always)]
unsafe fn copy<S: Simd>(from: *const u8, to: *mut u8, len: usize, copies: usize, ahead: Option<*const u8>) {
    // SAFETY: every piece lies inside the row by its arm's bounds on len, and a copy begins where the one before it
    // ends.
    unsafe {
        if len < LINE || (len >= LIBRARY_BYTES && copies == 1) {
            if let Some(ahead) = ahead {
                S::prefetch_bytes(ahead, len);
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
    // SAFETY: size_of::<T>() <= len, by the caller's arm, so both ends lie inside the row.
    unsafe {
        let (a, b) = (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
        to.cast::<T>().write_unaligned(a);
        to.add(last).cast::<T>().write_unaligned(b);
    }
}

/// Writes the whole lines of copies of `len` bytes, one after the other. With `STREAM` every copy is whole, aligned
/// lines.
#[inline(always)]
unsafe fn lines<S: Simd, const STREAM: bool, const AHEAD: bool>(
    from: *const u8,
    to: *mut u8,
    len: usize,
    copies: usize,
    ahead: *const u8,
) {
    // SAFETY: i + BURST * LINE <= len in the first loop and i + LINE <= len in the second; r < copies.
    unsafe {
        let mut i = 0;
        while i + BURST * LINE <= len {
            let mut lines = [S::read_line(from.add(i)); BURST];
            for (k, line) in lines.iter_mut().enumerate().skip(1) {
                *line = S::read_line(from.add(i + k * LINE));
            }
            if AHEAD {
                for k in 0..BURST {
                    S::prefetch(ahead.wrapping_add(i + k * LINE));
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
                S::prefetch(ahead.wrapping_add(i));
            }
            for r in 0..copies {
                write::<S, STREAM>(to.add(r * len + i), line);
            }
            i += LINE;
        }
    }
}

/// Writes a line, by a non-temporal store or a plain one.
#[inline(always)]
unsafe fn write<S: Simd, const STREAM: bool>(to: *mut u8, line: S::Line) {
    // SAFETY: `to` has a line, aligned with `STREAM`: this function's condition.
    unsafe { if STREAM { S::stream_line(to, line) } else { S::write_line(to, line) } }
}
