//! Memory on the stack that a row passes through on its way past the caches.

use std::mem::MaybeUninit;

/// Bytes of a stage: a small part of the first-level cache.
pub(super) const STAGE_BYTES: usize = 8 << 10;

/// Memory for a row, aligned for any register.
#[repr(align(64))]
pub(super) struct Stage([MaybeUninit<u8>; STAGE_BYTES]);

impl Stage {
    pub(super) fn new() -> Self {
        Self([MaybeUninit::uninit(); STAGE_BYTES])
    }

    /// The first byte.
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}
