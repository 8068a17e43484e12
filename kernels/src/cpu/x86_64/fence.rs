//! The fence after non-temporal stores.

use std::arch::x86_64::_mm_sfence;

/// Orders non-temporal stores before whatever the thread writes next.
pub(crate) fn fence() {
    // SAFETY: the instruction belongs to SSE, which every x86-64 has.
    unsafe { _mm_sfence() }
}
