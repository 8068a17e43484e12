//! Copies of memory: what a phase that only moves bytes is held against.

use kvcache_op::Workers;

use crate::team::Team;

/// A page, and the unit in which a copy is split.
const PAGE: usize = 4096;

/// A cache line.
const LINE: usize = 64;

/// How memory is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copy {
    /// The C library's `memcpy`.
    Plain,
    /// Stores past the caches, `streams` pages at once.
    Streaming {
        /// Pages that are read and written in turn, a line of each.
        streams: usize,
    },
}

/// Copies `len` bytes on the team's threads, an equal part for each.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes; they do not overlap. A streaming copy needs both aligned
/// to [`LINE`], and moves `len` rounded down to whole pages.
pub(crate) unsafe fn copy(team: &Team, how: Copy, from: *const u8, to: *mut u8, len: usize) {
    let threads = team.threads();
    let (from, to) = (from as usize, to as usize);
    team.run(threads, &|thread| {
        let share = |thread: usize| match thread == threads {
            true => len,
            false => len / threads * thread / PAGE * PAGE,
        };
        let (start, end) = (share(thread), share(thread + 1));
        let (from, to) = ((from + start) as *const u8, (to + start) as *mut u8);
        match how {
            // SAFETY: the caller's promise; a thread's part lies in the whole and is its own.
            Copy::Plain => unsafe { to.copy_from_nonoverlapping(from, end - start) },
            // SAFETY: as above; parts begin at whole pages.
            Copy::Streaming { streams } => unsafe { stream(from, to, (end - start) / PAGE, streams) },
        }
    });
}

/// Copies whole pages past the caches, `streams` at once.
///
/// # Safety
/// Both are aligned to [`LINE`] and valid for so many pages; they do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, to: *mut u8, pages: usize, streams: usize) {
    let copy_line = if std::arch::is_x86_feature_detected!("avx512f") { walk_avx512 } else { walk_sse2 };
    // SAFETY: the caller's promise; the processor has been asked, and every x86-64 has SSE2.
    unsafe {
        copy_line(from, to, pages, streams);
        std::arch::x86_64::_mm_sfence();
    }
}

/// As the C library copies: without stores past the caches there is one way.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`] of so many pages.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(from: *const u8, to: *mut u8, pages: usize, _: usize) {
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(from, pages * PAGE) }
}

/// # Safety
/// As for [`stream`], on a processor with AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn walk_avx512(from: *const u8, to: *mut u8, pages: usize, streams: usize) {
    use std::arch::x86_64::{_mm512_load_si512, _mm512_stream_si512};
    walk(pages, streams, |at| {
        // SAFETY: a line of the pages; the caller promises memory and alignment.
        unsafe { _mm512_stream_si512(to.add(at).cast(), _mm512_load_si512(from.add(at).cast())) }
    });
}

/// # Safety
/// As for [`stream`].
#[cfg(target_arch = "x86_64")]
unsafe fn walk_sse2(from: *const u8, to: *mut u8, pages: usize, streams: usize) {
    use std::arch::x86_64::{_mm_load_si128, _mm_stream_si128};
    walk(pages, streams, |at| {
        for part in (at..at + LINE).step_by(16) {
            // SAFETY: a part of a line of the pages; the caller promises memory and alignment.
            unsafe { _mm_stream_si128(to.add(part).cast(), _mm_load_si128(from.add(part).cast())) }
        }
    });
}

/// Calls `line` with the offset of every line of `pages` pages, a line of each of `streams` pages in turn.
#[inline(always)]
fn walk(pages: usize, streams: usize, line: impl Fn(usize)) {
    for first in (0..pages).step_by(streams) {
        let last = pages.min(first + streams);
        for offset in (0..PAGE).step_by(LINE) {
            for page in first..last {
                line(page * PAGE + offset);
            }
        }
    }
}
