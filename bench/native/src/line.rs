//! A cache line in registers: what the loops that are no kernels read and write.

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// A line of 16-bit numbers.
///
/// Whoever names an implementing type has detected the instructions that it is named for: safe functions use them too.
pub(crate) trait Line: Copy {
    /// Only zeros.
    fn zero() -> Self;

    /// The line at any address.
    ///
    /// # Safety
    /// `from` is valid for reads of a line.
    unsafe fn load(from: *const u8) -> Self;

    /// The first `len` bytes of a line at any address, then zeros.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, less than a line.
    unsafe fn load_part(from: *const u8, len: usize) -> Self;

    /// Writes the line, with non-temporal stores if `stream`.
    ///
    /// # Safety
    /// `to` is valid for writes of a line; with `stream` it is aligned to one.
    unsafe fn put(self, to: *mut u8, stream: bool);

    /// Writes the first `len` bytes of the line.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes, less than a line.
    unsafe fn put_part(self, to: *mut u8, len: usize);

    /// The sums of numbers at the same place, modulo 65536.
    fn add(self, other: Self) -> Self;

    /// Every number masked.
    fn and(self, mask: u16) -> Self;

    /// The sum of all numbers, modulo 65536.
    fn sum(self) -> u16;

    /// Prefetches the line at any address, valid or not.
    fn prefetch(line: *const u8);

    /// Orders non-temporal stores before what follows.
    fn fence();
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::Avx512;

/// What every processor of this kind has.
#[cfg(target_arch = "x86_64")]
pub(crate) type Widest = x86::Sse2;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) type Widest = portable::Words;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LINE, Line};

    fn sum(line: [u16; LINE / 2]) -> u16 {
        line.into_iter().fold(0, u16::wrapping_add)
    }

    /// A register of 64 bytes, on processors with AVX-512BW.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(__m512i);

    impl Line for Avx512 {
        #[inline(always)]
        fn zero() -> Self {
            // SAFETY: the processor has AVX-512F: see `Line`.
            Self(unsafe { _mm512_setzero_si512() })
        }

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: `from` is valid for a line; the processor has AVX-512F.
            Self(unsafe { _mm512_loadu_si512(from.cast()) })
        }

        #[inline(always)]
        unsafe fn load_part(from: *const u8, len: usize) -> Self {
            // SAFETY: `from` is valid for `len < 64` bytes, and masked bytes are not read; the processor has AVX-512BW.
            Self(unsafe { _mm512_maskz_loadu_epi8((1 << len) - 1, from.cast()) })
        }

        #[inline(always)]
        unsafe fn put(self, to: *mut u8, stream: bool) {
            // SAFETY: `to` is valid for a line, and aligned to one if `stream`; the processor has AVX-512F.
            unsafe {
                match stream {
                    true => _mm512_stream_si512(to.cast(), self.0),
                    false => _mm512_storeu_si512(to.cast(), self.0),
                }
            }
        }

        #[inline(always)]
        unsafe fn put_part(self, to: *mut u8, len: usize) {
            // SAFETY: `to` is valid for `len < 64` bytes, and masked bytes are not written; the processor has
            // AVX-512BW.
            unsafe { _mm512_mask_storeu_epi8(to.cast(), (1 << len) - 1, self.0) }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: the processor has AVX-512BW.
            Self(unsafe { _mm512_add_epi16(self.0, other.0) })
        }

        #[inline(always)]
        fn and(self, mask: u16) -> Self {
            // SAFETY: the processor has AVX-512F.
            Self(unsafe { _mm512_and_si512(self.0, _mm512_set1_epi16(mask.cast_signed())) })
        }

        #[inline(always)]
        fn sum(self) -> u16 {
            // SAFETY: both types are 64 bytes, of which any value is valid.
            sum(unsafe { std::mem::transmute::<__m512i, [u16; LINE / 2]>(self.0) })
        }

        #[inline(always)]
        fn prefetch(line: *const u8) {
            // SAFETY: a prefetch of an invalid address does nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
        }

        #[inline(always)]
        fn fence() {
            // SAFETY: every x86-64 has SSE.
            unsafe { _mm_sfence() }
        }
    }

    /// Four registers of 16 bytes, which every x86-64 has.
    #[derive(Clone, Copy)]
    pub(crate) struct Sse2([__m128i; 4]);

    impl Line for Sse2 {
        #[inline(always)]
        fn zero() -> Self {
            // SAFETY: every x86-64 has SSE2.
            Self([unsafe { _mm_setzero_si128() }; 4])
        }

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: `from` is valid for a line, of which this is `16 * i` to `16 * i + 16`, `i < 4`.
            Self(std::array::from_fn(|i| unsafe { _mm_loadu_si128(from.add(16 * i).cast()) }))
        }

        #[inline(always)]
        unsafe fn load_part(from: *const u8, len: usize) -> Self {
            let mut line = [0_u8; LINE];
            // SAFETY: `from` is valid for `len` bytes, less than the array's; the array is a line.
            unsafe {
                line.as_mut_ptr().copy_from_nonoverlapping(from, len);
                Self::load(line.as_ptr())
            }
        }

        #[inline(always)]
        unsafe fn put(self, to: *mut u8, stream: bool) {
            for (i, part) in self.0.into_iter().enumerate() {
                // SAFETY: `to` is valid for a line, and aligned to one if `stream`; `i < 4`.
                unsafe {
                    match stream {
                        true => _mm_stream_si128(to.add(16 * i).cast(), part),
                        false => _mm_storeu_si128(to.add(16 * i).cast(), part),
                    }
                }
            }
        }

        #[inline(always)]
        unsafe fn put_part(self, to: *mut u8, len: usize) {
            // SAFETY: `to` is valid for `len` bytes, less than those of the four registers.
            unsafe { to.copy_from_nonoverlapping(self.0.as_ptr().cast(), len) }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: every x86-64 has SSE2.
            Self(std::array::from_fn(|i| unsafe { _mm_add_epi16(self.0[i], other.0[i]) }))
        }

        #[inline(always)]
        fn and(self, mask: u16) -> Self {
            // SAFETY: every x86-64 has SSE2.
            Self(self.0.map(|part| unsafe { _mm_and_si128(part, _mm_set1_epi16(mask.cast_signed())) }))
        }

        #[inline(always)]
        fn sum(self) -> u16 {
            // SAFETY: both types are 64 bytes, of which any value is valid.
            sum(unsafe { std::mem::transmute::<[__m128i; 4], [u16; LINE / 2]>(self.0) })
        }

        #[inline(always)]
        fn prefetch(line: *const u8) {
            Avx512::prefetch(line);
        }

        #[inline(always)]
        fn fence() {
            Avx512::fence();
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod portable {
    use super::{LINE, Line};

    /// A line as the compiler likes to keep it; there are no non-temporal stores.
    #[derive(Clone, Copy)]
    pub(crate) struct Words([u16; LINE / 2]);

    impl Line for Words {
        fn zero() -> Self {
            Self([0; LINE / 2])
        }

        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: `from` is valid for a line, at any address.
            Self(unsafe { from.cast::<[u16; LINE / 2]>().read_unaligned() })
        }

        unsafe fn load_part(from: *const u8, len: usize) -> Self {
            let mut line = Self::zero();
            // SAFETY: `from` is valid for `len` bytes, less than a line.
            unsafe { line.0.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(from, len) };
            line
        }

        unsafe fn put(self, to: *mut u8, _: bool) {
            // SAFETY: `to` is valid for a line, at any address.
            unsafe { to.cast::<[u16; LINE / 2]>().write_unaligned(self.0) }
        }

        unsafe fn put_part(self, to: *mut u8, len: usize) {
            // SAFETY: `to` is valid for `len` bytes, less than a line.
            unsafe { to.copy_from_nonoverlapping(self.0.as_ptr().cast(), len) }
        }

        fn add(self, other: Self) -> Self {
            Self(std::array::from_fn(|i| self.0[i].wrapping_add(other.0[i])))
        }

        fn and(self, mask: u16) -> Self {
            Self(self.0.map(|number| number & mask))
        }

        fn sum(self) -> u16 {
            self.0.into_iter().fold(0, u16::wrapping_add)
        }

        fn prefetch(_: *const u8) {}

        fn fence() {}
    }
}
