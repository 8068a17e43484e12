//! Prefetches: memory is brought into a cache before it is read.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Bytes in a cache line.
pub const LINE: usize = 64;

/// Prefetches the line at any address, readable or not, into the first-level cache.
#[inline(always)]
pub fn prefetch_l1(line: *const u8) {
    // SAFETY: the instruction belongs to SSE, which every x86-64 has, and no address makes it fault.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Prefetches the line at any address, readable or not, into the second-level cache.
#[inline(always)]
pub fn prefetch_l2(line: *const u8) {
    // SAFETY: the instruction belongs to SSE, which every x86-64 has, and no address makes it fault.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Prefetches the line at any address, writable or not, to be written.
#[inline(always)]
pub fn prefetch_write(line: *const u8) {
    // SAFETY: processors that do not know the instruction ignore it, and no address makes it fault.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
