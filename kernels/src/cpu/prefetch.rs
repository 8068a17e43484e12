//! Asking for memory before it is needed.

/// Bytes in a cache line.
pub(super) const LINE: usize = 64;

/// Brings the line at any address into the first-level cache, if there is one.
#[inline(always)]
pub(super) fn prefetch(line: *const u8) {
    // SAFETY: the instruction belongs to SSE, which every x86-64 has, and an address that cannot be read does no harm.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Brings `len` bytes from any address on into the first-level cache.
#[inline(always)]
pub(super) fn prefetch_row(row: *const u8, len: usize) {
    for i in (0..len).step_by(LINE) {
        prefetch(row.wrapping_add(i));
    }
}
