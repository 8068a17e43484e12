//! Copies of rows, by lines.

use super::prefetch::{LINE, prefetch, prefetch_row};
use super::simd::Simd;

/// Copies `len` bytes.
///
/// # Safety
/// The instruction set is enabled; `from` and `to` are valid for `len` bytes and do not overlap.
#[inline(always)]
pub(super) unsafe fn copy<S: Simd>(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise; every line lies inside the row.
    unsafe {
        if len < LINE {
            return to.copy_from_nonoverlapping(from, len);
        }
        let rest = len % LINE;
        for i in (0..len - rest).step_by(LINE) {
            S::write_line(to.add(i), S::read_line(from.add(i)));
        }
        if rest > 0 {
            S::write_line(to.add(len - LINE), S::read_line(from.add(len - LINE)));
        }
    }
}

/// Lines that are read before they are written, so that reads and writes come in bursts.
const BURST: usize = 4;

/// Writes neighbouring copies of `len` bytes, whole lines past the caches. Meanwhile asks for as many bytes at `ahead`,
/// which may be any address.
///
/// # Safety
/// The instruction set is enabled; `from` is valid for `len` bytes and `to` for `copies` times as many; they do not overlap.
#[inline(always)]
pub(super) unsafe fn stream<S: Simd>(from: *const u8, to: *mut u8, len: usize, copies: usize, ahead: *const u8) {
    // SAFETY: the caller's promise; every line lies inside the row, and a copy begins where the one before it ends.
    unsafe {
        if to.align_offset(LINE) == 0 && len.is_multiple_of(LINE) {
            return stream_lines::<S>(from, to, len, copies, ahead);
        }
        prefetch_row(ahead, len);
        for r in 0..copies {
            let to = to.add(r * len);
            let head = to.align_offset(LINE).min(len);
            let lines = (len - head) / LINE * LINE;
            copy::<S>(from, to, head);
            stream_lines::<S>(from.add(head), to.add(head), lines, 1, from);
            copy::<S>(from.add(head + lines), to.add(head + lines), len - head - lines);
        }
    }
}

/// As [`stream`], where every copy is whole lines.
#[inline(always)]
unsafe fn stream_lines<S: Simd>(from: *const u8, to: *mut u8, len: usize, copies: usize, ahead: *const u8) {
    // SAFETY: the caller's promise; every line lies inside the row.
    unsafe {
        let bursts = len - len % (BURST * LINE);
        for i in (0..bursts).step_by(BURST * LINE) {
            let mut lines = [S::read_line(from.add(i)); BURST];
            for (k, line) in lines.iter_mut().enumerate().skip(1) {
                *line = S::read_line(from.add(i + k * LINE));
            }
            for k in 0..BURST {
                prefetch(ahead.wrapping_add(i + k * LINE));
            }
            for r in 0..copies {
                for (k, line) in lines.into_iter().enumerate() {
                    S::stream_line(to.add(r * len + i + k * LINE), line);
                }
            }
        }
        for i in (bursts..len).step_by(LINE) {
            let line = S::read_line(from.add(i));
            prefetch(ahead.wrapping_add(i));
            for r in 0..copies {
                S::stream_line(to.add(r * len + i), line);
            }
        }
    }
}
