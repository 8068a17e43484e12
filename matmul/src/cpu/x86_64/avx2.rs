//! AVX2 and AVX-VNNI: 16 columns in two registers.
// SAFETY of all that is unsafe here: the instructions are enabled, and pointers are valid for what is read or written
// (see Columns and Dot).
#![expect(unsafe_op_in_unsafe_fn, reason = "one reason for all, above")]

use std::arch::x86_64::*;

use kvcache_simd::{Function, Outlined};

use super::super::dot::{Columns, Dot};
use crate::reference::NAN;

/// Two registers of 8 float32.
#[derive(Clone, Copy)]
pub(in super::super) struct Floats([__m256; 2]);

impl Columns for Floats {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([_mm256_set1_ps(x); 2])
    }

    #[inline(always)]
    unsafe fn read(from: *const f32) -> Self {
        Self([_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))])
    }

    #[inline(always)]
    unsafe fn write(self, to: *mut f32) {
        _mm256_storeu_ps(to, self.0[0]);
        _mm256_storeu_ps(to.add(8), self.0[1]);
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        Self([_mm256_add_ps(self.0[0], b.0[0]), _mm256_add_ps(self.0[1], b.0[1])])
    }

    #[inline(always)]
    unsafe fn scale(self, x: f32) -> Self {
        let x = _mm256_set1_ps(x);
        Self([_mm256_mul_ps(self.0[0], x), _mm256_mul_ps(self.0[1], x)])
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Self([_mm256_fmadd_ps(self.0[0], b.0[0], c.0[0]), _mm256_fmadd_ps(self.0[1], b.0[1], c.0[1])])
    }

    #[inline(always)]
    unsafe fn one_nan(self) -> Self {
        let one = |x| _mm256_blendv_ps(x, _mm256_set1_ps(NAN), _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        Self([one(self.0[0]), one(self.0[1])])
    }
}

/// What multiplies words of int16 if `PAIRS`, else of int8; of [`AVX2`] alone, those only with codes of 4 bits.
pub(in super::super) struct Avx2<const SET: u8, const PAIRS: bool>;

pub(in super::super) const AVX2: u8 = 0;
/// AVX-VNNI.
pub(in super::super) const VNNI: u8 = 1;
/// AVX-VNNI's instructions as AVX512-VNNI has them.
#[cfg(test)]
pub(in super::super) const TWIN: u8 = 2;

macro_rules! dot_of {
    ($SET:ident, $outlined:ident, $features:literal, $dpbusd:ident, $dpwssd:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $outlined<const PAIRS: bool, F: Function<Avx2<$SET, PAIRS>>>(
            arguments: &F::Arguments<'_>,
        ) -> F::Output {
            F::run(arguments)
        }

        impl<const PAIRS: bool> Dot for Avx2<$SET, PAIRS> {
            const ROWS: usize = 4;
            const PAIRS: bool = PAIRS;
            const UNPACKED_ROWS: usize = 6;
            type Codes = [__m256i; 2];
            type Sums = [__m256i; 2];
            type Floats = Floats;

            fn outlined<F: Function<Self>>() -> Outlined<Self, F> {
                $outlined::<PAIRS, F>
            }

            #[inline(always)]
            unsafe fn read(from: *const u8) -> Self::Codes {
                [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())]
            }

            #[inline(always)]
            unsafe fn write(codes: Self::Codes, to: *mut u8) {
                _mm256_storeu_si256(to.cast(), codes[0]);
                _mm256_storeu_si256(to.add(32).cast(), codes[1]);
            }

            #[inline(always)]
            unsafe fn codes<const BITS: usize, const PART: usize>(line: *const u8) -> Self::Codes {
                let each = |x| match (PAIRS, BITS, PART) {
                    (false, 4, 0) => _mm256_and_si256(x, _mm256_set1_epi8(15)),
                    (false, 4, _) => _mm256_and_si256(_mm256_srli_epi16::<4>(x), _mm256_set1_epi8(15)),
                    (false, _, _) => x,
                    (true, 4, 0) => _mm256_and_si256(x, _mm256_set1_epi16(15)),
                    (true, 4, 1) => _mm256_and_si256(_mm256_srli_epi16::<8>(x), _mm256_set1_epi16(15)),
                    (true, 4, 2) => _mm256_and_si256(_mm256_srli_epi16::<4>(x), _mm256_set1_epi16(15)),
                    (true, 4, _) => _mm256_srli_epi16::<12>(x),
                    (true, _, 0) => _mm256_and_si256(x, _mm256_set1_epi16(255)),
                    (true, _, _) => _mm256_srli_epi16::<8>(x),
                };
                let [low, high] = Self::read(line);
                [each(low), each(high)]
            }

            #[inline(always)]
            unsafe fn begin(start: i32) -> Self::Sums {
                // Sums of int16 are widened before it is added.
                [if $SET != AVX2 || PAIRS { _mm256_set1_epi32(start) } else { _mm256_setzero_si256() }; 2]
            }

            #[inline(always)]
            unsafe fn dot<const P: usize, const I: usize>(
                sums: &mut [Self::Sums; P],
                codes: [Self::Codes; P],
                words: *const u32,
            ) {
                let word = _mm256_set1_epi32(words.add(I).read() as i32);
                for p in 0..P {
                    for half in 0..2 {
                        let (sum, codes) = (&mut sums[p][half], codes[p][half]);
                        *sum = match ($SET != AVX2, PAIRS) {
                            (false, false) => _mm256_add_epi16(*sum, _mm256_maddubs_epi16(codes, word)),
                            (false, true) => _mm256_add_epi32(*sum, _mm256_madd_epi16(codes, word)),
                            (true, false) => $dpbusd(*sum, codes, word),
                            (true, true) => $dpwssd(*sum, codes, word),
                        };
                    }
                }
            }

            #[inline(always)]
            unsafe fn finish(sums: Self::Sums, start: i32) -> Floats {
                let widened = |sum| match $SET != AVX2 || PAIRS {
                    true => sum,
                    // 32 codes of 15, times 127, in two parts: within int16.
                    false => _mm256_add_epi32(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)), _mm256_set1_epi32(start)),
                };
                Floats([_mm256_cvtepi32_ps(widened(sums[0])), _mm256_cvtepi32_ps(widened(sums[1]))])
            }
        }
    };
}

/// `_mm256_dpwssd_avx_epi32`, which the compiler takes apart where it thinks that two instructions are as fast.
#[inline]
#[target_feature(enable = "avx2,fma,avxvnni")]
unsafe fn dpwssd(mut sums: __m256i, codes: __m256i, words: __m256i) -> __m256i {
    std::arch::asm!(
        "{{vex}} vpdpwssd {}, {}, {}", inout(ymm_reg) sums, in(ymm_reg) codes, in(ymm_reg) words,
        options(pure, nomem, nostack, preserves_flags)
    );
    sums
}

/// What AVX2 alone does not have, and nobody calls.
#[inline(always)]
unsafe fn no_vnni(sums: __m256i, _: __m256i, _: __m256i) -> __m256i {
    sums
}

dot_of!(AVX2, outlined, "avx2,fma", no_vnni, no_vnni);
dot_of!(VNNI, outlined_vnni, "avx2,fma,avxvnni", _mm256_dpbusd_avx_epi32, dpwssd);
#[cfg(test)]
dot_of!(TWIN, outlined_twin, "avx2,fma,avx512vnni,avx512vl", _mm256_dpbusd_epi32, _mm256_dpwssd_epi32);
