//! The maker of the processor.

/// Whether the processor is AMD's, asked once: a virtual machine takes long to answer.
pub fn is_amd() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        static IS_AMD: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
            // SAFETY: every x86-64 has the instruction and its leaf 0.
            #[allow(unused_unsafe, reason = "safe since Rust 1.95 at the latest, not in every version supported")]
            let leaf = unsafe { std::arch::x86_64::__cpuid(0) };
            [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
        });
        *IS_AMD
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}
