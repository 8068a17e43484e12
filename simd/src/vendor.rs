//! The maker of the processor.

/// Whether the processor is AMD's.
pub fn is_amd() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 has the instruction and its leaf 0.
        #[allow(unused_unsafe, reason = "safe since Rust 1.95 at the latest, not in every version supported")]
        let leaf = unsafe { std::arch::x86_64::__cpuid(0) };
        [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}
