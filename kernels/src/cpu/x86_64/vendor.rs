//! Who made the processor.

use std::arch::x86_64::__cpuid;

/// Whether it is AMD's.
pub(crate) fn is_amd() -> bool {
    let leaf = __cpuid(0);
    [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
}
