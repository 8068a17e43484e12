//! AVX-512, with AVX512-VNNI or without: 16 columns in a register.
// SAFETY of all that is unsafe here: the instructions are enabled, and pointers are valid for what is read or written
// (see Columns and Dot).
#![expect(unsafe_op_in_unsafe_fn, reason = "one reason for all, above")]

use std::arch::x86_64::*;

use kvcache_simd::{Function, Outlined};

use super::super::dot::{Columns, Dot};
use crate::reference::NAN;

impl Columns for __m512 {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        _mm512_set1_ps(x)
    }

    #[inline(always)]
    unsafe fn read(from: *const f32) -> Self {
        _mm512_loadu_ps(from)
    }

    #[inline(always)]
    unsafe fn write(self, to: *mut f32) {
        _mm512_storeu_ps(to, self)
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        _mm512_add_ps(self, b)
    }

    #[inline(always)]
    unsafe fn scale(self, x: f32) -> Self {
        _mm512_mul_ps(self, _mm512_set1_ps(x))
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        _mm512_fmadd_ps(self, b, c)
    }

    #[inline(always)]
    unsafe fn one_nan(self) -> Self {
        _mm512_mask_mov_ps(self, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self, self), _mm512_set1_ps(NAN))
    }
}

/// What multiplies words of int16 if `PAIRS`, else of int8; of AVX-512 alone, those only with codes of 4 bits.
pub(in super::super) struct Avx512<const VNNI: bool, const PAIRS: bool>;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn outlined<const PAIRS: bool, F: Function<Avx512<false, PAIRS>>>(arguments: &F::Arguments<'_>) -> F::Output {
    F::run(arguments)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
unsafe fn outlined_vnni<const PAIRS: bool, F: Function<Avx512<true, PAIRS>>>(
    arguments: &F::Arguments<'_>,
) -> F::Output {
    F::run(arguments)
}

/// `_mm512_dpwssd_epi32` with the `I`-th word, which the compiler takes apart where it thinks that two instructions are
/// as fast.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
unsafe fn dpwssd<const P: usize, const I: usize>(sums: &mut [__m512i; P], codes: [__m512i; P], words: *const u32) {
    if P == 1 {
        return std::arch::asm!(
            "vpdpwssd {}, {}, dword ptr [{} + {}]{{1to16}}",
            inout(zmm_reg) sums[0], in(zmm_reg) codes[0], in(reg) words, const 4 * I,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    let word = _mm512_set1_epi32(words.add(I).read() as i32);
    for p in 0..P {
        std::arch::asm!(
            "vpdpwssd {}, {}, {}", inout(zmm_reg) sums[p], in(zmm_reg) codes[p], in(zmm_reg) word,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
}

macro_rules! dot_of {
    ($VNNI:literal, $outlined:ident) => {
        impl<const PAIRS: bool> Dot for Avx512<$VNNI, PAIRS> {
            const ROWS: usize = 12;
            const UNPACKED_ROWS: usize = 6;
            const UNPACKED_PANELS: usize = 2;
            const PAIRS: bool = PAIRS;
            type Codes = __m512i;
            type Sums = __m512i;
            type Floats = __m512;

            fn outlined<F: Function<Self>>() -> Outlined<Self, F> {
                $outlined::<PAIRS, F>
            }

            #[inline(always)]
            unsafe fn read(from: *const u8) -> __m512i {
                _mm512_loadu_si512(from.cast())
            }

            #[inline(always)]
            unsafe fn write(codes: __m512i, to: *mut u8) {
                _mm512_storeu_si512(to.cast(), codes)
            }

            #[inline(always)]
            unsafe fn codes<const BITS: usize, const PART: usize>(line: *const u8) -> __m512i {
                let x = Self::read(line);
                match (PAIRS, BITS, PART) {
                    (false, 4, 0) => _mm512_and_si512(x, _mm512_set1_epi8(15)),
                    (false, 4, _) => _mm512_and_si512(_mm512_srli_epi16::<4>(x), _mm512_set1_epi8(15)),
                    (false, _, _) => x,
                    (true, 4, 0) => _mm512_and_si512(x, _mm512_set1_epi16(15)),
                    (true, 4, 1) => _mm512_and_si512(_mm512_srli_epi16::<8>(x), _mm512_set1_epi16(15)),
                    (true, 4, 2) => _mm512_and_si512(_mm512_srli_epi16::<4>(x), _mm512_set1_epi16(15)),
                    (true, 4, _) => _mm512_srli_epi16::<12>(x),
                    (true, _, 0) => _mm512_and_si512(x, _mm512_set1_epi16(255)),
                    (true, _, _) => _mm512_srli_epi16::<8>(x),
                }
            }

            #[inline(always)]
            unsafe fn begin(start: i32) -> __m512i {
                // Sums of int16 are widened before it is added.
                if $VNNI || PAIRS { _mm512_set1_epi32(start) } else { _mm512_setzero_si512() }
            }

            #[inline(always)]
            unsafe fn dot<const P: usize, const I: usize>(
                sums: &mut [__m512i; P],
                codes: [__m512i; P],
                words: *const u32,
            ) {
                if $VNNI && PAIRS {
                    return dpwssd::<P, I>(sums, codes, words);
                }
                let word = _mm512_set1_epi32(words.add(I).read() as i32);
                for p in 0..P {
                    sums[p] = match ($VNNI, PAIRS) {
                        (true, _) => _mm512_dpbusd_epi32(sums[p], codes[p], word),
                        (false, false) => _mm512_add_epi16(sums[p], _mm512_maddubs_epi16(codes[p], word)),
                        (false, true) => _mm512_add_epi32(sums[p], _mm512_madd_epi16(codes[p], word)),
                    };
                }
            }

            #[inline(always)]
            unsafe fn finish(sums: __m512i, start: i32) -> __m512 {
                _mm512_cvtepi32_ps(match $VNNI || PAIRS {
                    true => sums,
                    // 32 codes of 15, times 127, in two parts: within int16.
                    false => _mm512_add_epi32(_mm512_madd_epi16(sums, _mm512_set1_epi16(1)), _mm512_set1_epi32(start)),
                })
            }
        }
    };
}
dot_of!(false, outlined);
dot_of!(true, outlined_vnni);
