//! Prefetches: memory is brought into a cache before it is read.

/// Bytes in a cache line.
pub const LINE: usize = 64;

macro_rules! prefetch {
    ($($(#[$doc:meta])* $name:ident: $hint:ident;)*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(line: *const u8) {
            // SAFETY: the instruction belongs to SSE, which every x86-64 has, and no address makes it fault.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::$hint }>(line.cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = line;
        }
    )* };
}

prefetch! {
    /// Prefetches the line at any address, readable or not, into the first-level cache.
    prefetch_l1: _MM_HINT_T0;
    /// Prefetches the line at any address, readable or not, into the second-level cache.
    prefetch_l2: _MM_HINT_T1;
}
