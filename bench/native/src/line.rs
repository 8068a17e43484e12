//! A cache line in registers: what the loop of the limit reads and writes.

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// A line of 16-bit numbers, which compilers keep in the widest registers that a loop is compiled for.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Line([u16; LINE / 2]);

impl Line {
    /// Only zeros.
    pub(crate) const ZERO: Self = Self([0; LINE / 2]);

    /// The line at any address.
    ///
    /// # Safety
    /// `from` is valid for reads of a line.
    #[inline(always)]
    pub(crate) unsafe fn load(from: *const u8) -> Self {
        // SAFETY: `from` is valid for a line, at any address.
        Self(unsafe { from.cast::<[u16; LINE / 2]>().read_unaligned() })
    }

    /// Writes the line, with non-temporal stores if `stream` and the processor has such; with `AVX512`, one of the
    /// whole line.
    ///
    /// # Safety
    /// `to` is valid for writes of a line; with `stream` it is aligned to one. With `AVX512` the processor has AVX-512F.
    #[inline(always)]
    pub(crate) unsafe fn put<const AVX512: bool>(self, to: *mut u8, stream: bool) {
        #[cfg(target_arch = "x86_64")]
        if stream {
            use std::arch::x86_64::{__m128i, __m512i, _mm_stream_si128, _mm512_stream_si512};
            // SAFETY: `to` is valid for a line and aligned to one, and so is `self`; the instructions are there: this
            // function's conditions, and every x86-64 has SSE2.
            unsafe {
                if AVX512 {
                    _mm512_stream_si512(to.cast(), self.0.as_ptr().cast::<__m512i>().read());
                } else {
                    for i in 0..4 {
                        _mm_stream_si128(to.cast::<__m128i>().add(i), self.0.as_ptr().cast::<__m128i>().add(i).read());
                    }
                }
            }
            return;
        }
        let _ = stream;
        // SAFETY: `to` is valid for a line, at any address.
        unsafe { to.cast::<[u16; LINE / 2]>().write_unaligned(self.0) }
    }

    /// The sums of numbers at the same place, modulo 65536.
    #[inline(always)]
    pub(crate) fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].wrapping_add(other.0[i])))
    }

    /// The sum of all numbers, modulo 65536.
    pub(crate) fn sum(self) -> u64 {
        self.0.into_iter().fold(0_u16, u16::wrapping_add).into()
    }
}

/// Orders non-temporal stores before what follows.
#[inline(always)]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
