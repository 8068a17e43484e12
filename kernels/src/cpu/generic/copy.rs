//! Copies of rows, line by line.

use kvcache_simd::{Float, Function, LINE, Simd};

use super::super::block::StridedCopy;
use super::quant_simd::prefetch_bytes;

/// Bytes from which on one plain copy is left to the C library, which knows the processor's own instruction for it.
const LIBRARY_BYTES: usize = 16 << 10;

/// Bytes of a row from which on what is less than a line at its ends takes little of the time.
const LONG_BYTES: usize = 2048;

/// Lines that are read before they are written, so that reads and writes come in bursts.
const BURST: usize = 4;

/// Copies rows by plain stores.
pub(crate) struct CopyRows;

/// Copies rows by non-temporal stores: the copies are as long as whole lines, at addresses that the set's non-temporal
/// stores need. Rows may be at any address.
pub(crate) struct StreamRows;

/// Copies rows, once, to any address: lines by non-temporal stores, what is less than a line at either end by plain
/// ones.
pub(crate) struct StreamAny;

impl<S: Simd> Function<S> for CopyRows {
    type Arguments<'a> = StridedCopy;
    type Output = ();

    #[inline(always)]
    unsafe fn run(all: &StridedCopy) {
        // One copy, the common case, is known to the compiler.
        // SAFETY: the rows and their copies are valid: CopyFunction's condition.
        unsafe { if all.copies == 1 { copy_rows::<S>(all, 1) } else { copy_rows::<S>(all, all.copies) } }
    }
}

impl<S: Simd> Function<S> for StreamRows {
    type Arguments<'a> = StridedCopy;
    type Output = ();

    #[inline(always)]
    unsafe fn run(all: &StridedCopy) {
        // One copy, the common case, is known to the compiler.
        // SAFETY: the rows and their copies are valid: CopyFunction's condition.
        unsafe { if all.copies == 1 { stream_rows::<S>(all, 1) } else { stream_rows::<S>(all, all.copies) } }
    }
}

impl<S: Simd> Function<S> for StreamAny {
    type Arguments<'a> = StridedCopy;
    type Output = ();

    #[inline(always)]
    unsafe fn run(all: &StridedCopy) {
        let len = all.len;
        for r in 0..all.rows {
            // SAFETY: r < rows, so this is one of the caller's rows, of head + whole + tail = len bytes.
            unsafe {
                let (from, to) = (all.from.add(r * all.from_step), all.to.add(r * all.to_step));
                let ahead = from.wrapping_offset(all.prefetch.unwrap_or(0));
                let head = to.align_offset(LINE).min(len);
                let whole = (len - head) / LINE * LINE;
                if whole < len && len < LONG_BYTES {
                    // All lines at once, also of head and tail, whose plain loads would hold up all later stores.
                    prefetch_bytes::<S>(ahead, len);
                    S::prefetch(ahead.wrapping_add(len - 1));
                    copy::<S>(from, to, head, 1, None);
                    lines::<S, true, false>(from.add(head), to.add(head), whole, 1, ahead);
                } else {
                    copy::<S>(from, to, head, 1, None);
                    lines::<S, true, true>(from.add(head), to.add(head), whole, 1, ahead.wrapping_add(head));
                }
                copy::<S>(from.add(head + whole), to.add(head + whole), len - head - whole, 1, None);
            }
        }
    }
}

#[inline(always)]
unsafe fn copy_rows<S: Simd>(all: &StridedCopy, copies: usize) {
    for r in 0..all.rows {
        // SAFETY: r < rows, so this is one of the caller's rows.
        unsafe {
            let (from, to) = (all.from.add(r * all.from_step), all.to.add(r * all.to_step));
            copy::<S>(from, to, all.len, copies, all.prefetch.map(|ahead| from.wrapping_offset(ahead)));
        }
    }
}

#[inline(always)]
unsafe fn stream_rows<S: Simd>(all: &StridedCopy, copies: usize) {
    for r in 0..all.rows {
        // SAFETY: r < rows, so this is one of the caller's rows, and its copies are as long as lines, and aligned.
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
                prefetch_bytes::<S>(ahead, len);
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
            let last = read_line::<S>(from.add(len - LINE));
            for r in 1..=copies {
                write_line::<S, false>(to.add(r * len - LINE), last);
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
            let mut lines = [read_line::<S>(from.add(i)); BURST];
            for (k, line) in lines.iter_mut().enumerate().skip(1) {
                *line = read_line::<S>(from.add(i + k * LINE));
            }
            if AHEAD {
                for k in 0..BURST {
                    S::prefetch(ahead.wrapping_add(i + k * LINE));
                }
            }
            for r in 0..copies {
                for (k, line) in lines.into_iter().enumerate() {
                    write_line::<S, STREAM>(to.add(r * len + i + k * LINE), line);
                }
            }
            i += BURST * LINE;
        }
        while i + LINE <= len {
            let line = read_line::<S>(from.add(i));
            if AHEAD {
                S::prefetch(ahead.wrapping_add(i));
            }
            for r in 0..copies {
                write_line::<S, STREAM>(to.add(r * len + i), line);
            }
            i += LINE;
        }
    }
}

/// Reads a line, in one register or two.
#[inline(always)]
unsafe fn read_line<S: Simd>(from: *const u8) -> [S::F32; 2] {
    // SAFETY: `from` has a line: this function's condition.
    unsafe {
        let first = S::read_f32(from.cast());
        [first, if S::LANES * size_of::<f32>() < LINE { S::read_f32(from.add(LINE / 2).cast()) } else { first }]
    }
}

/// Writes a line, by non-temporal stores or plain ones.
#[inline(always)]
unsafe fn write_line<S: Simd, const STREAM: bool>(to: *mut u8, [first, second]: [S::F32; 2]) {
    // SAFETY: `to` has a line, aligned with `STREAM`: this function's condition.
    unsafe {
        f32::write::<S, STREAM>(to.cast(), first);
        if S::LANES * size_of::<f32>() < LINE {
            f32::write::<S, STREAM>(to.add(LINE / 2).cast(), second);
        }
    }
}
