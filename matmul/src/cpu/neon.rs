//! NEON, with dot products of int8 or without: 16 columns in four registers.
// SAFETY of all that is unsafe here: the instructions are enabled, and pointers are valid for what is read or written
// (see Columns and Dot).
#![expect(unsafe_op_in_unsafe_fn, reason = "one reason for all, above")]

use std::arch::aarch64::*;

use kvcache_simd::{Function, Outlined};

use super::dot::{Columns, Dot};
use crate::reference::NAN;

/// An expression of each of four registers.
macro_rules! each {
    (|$i:ident| $register:expr) => {{
        let mut $i = 0;
        let first = $register;
        let mut registers = [first; 4];
        $i = 1;
        while $i < 4 {
            registers[$i] = $register;
            $i += 1;
        }
        registers
    }};
}

impl Columns for [float32x4_t; 4] {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [vdupq_n_f32(x); 4]
    }

    #[inline(always)]
    unsafe fn read(from: *const f32) -> Self {
        each!(|i| vld1q_f32(from.add(4 * i)))
    }

    #[inline(always)]
    unsafe fn write(self, to: *mut f32) {
        each!(|i| vst1q_f32(to.add(4 * i), self[i]));
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        each!(|i| vaddq_f32(self[i], b[i]))
    }

    #[inline(always)]
    unsafe fn scale(self, x: f32) -> Self {
        each!(|i| vmulq_n_f32(self[i], x))
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        each!(|i| vfmaq_f32(c[i], self[i], b[i]))
    }

    #[inline(always)]
    unsafe fn one_nan(self) -> Self {
        each!(|i| vbslq_f32(vceqq_f32(self[i], self[i]), self[i], vdupq_n_f32(NAN)))
    }
}

/// Products of words of int16.
pub(super) struct Pairs;

/// Dot products of words of int8.
pub(super) struct Dotprod;

#[target_feature(enable = "neon")]
unsafe fn pairs<F: Function<Pairs>>(arguments: &F::Arguments<'_>) -> F::Output {
    F::run(arguments)
}

#[target_feature(enable = "neon,dotprod")]
unsafe fn dotprod<F: Function<Dotprod>>(arguments: &F::Arguments<'_>) -> F::Output {
    F::run(arguments)
}

/// `vdotq_s32`, which stable Rust does not have.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn sdot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    std::arch::asm!(
        "sdot {:v}.4s, {:v}.16b, {:v}.16b", inout(vreg) sums, in(vreg) a, in(vreg) b,
        options(pure, nomem, nostack, preserves_flags)
    );
    sums
}

/// What both have in common.
macro_rules! registers {
    ($outlined:ident) => {
        type Codes = [uint8x16_t; 4];
        type Sums = [int32x4_t; 4];
        type Floats = [float32x4_t; 4];

        fn outlined<F: Function<Self>>() -> Outlined<Self, F> {
            $outlined::<F>
        }

        #[inline(always)]
        unsafe fn read(from: *const u8) -> Self::Codes {
            each!(|i| vld1q_u8(from.add(16 * i)))
        }

        #[inline(always)]
        unsafe fn write(codes: Self::Codes, to: *mut u8) {
            each!(|i| vst1q_u8(to.add(16 * i), codes[i]));
        }

        #[inline(always)]
        unsafe fn begin(start: i32) -> Self::Sums {
            [vdupq_n_s32(start); 4]
        }

        #[inline(always)]
        unsafe fn finish(sums: Self::Sums, _: i32) -> Self::Floats {
            each!(|i| vcvtq_f32_s32(sums[i]))
        }
    };
}

impl Dot for Pairs {
    const ROWS: usize = 4;
    const PAIRS: bool = true;
    registers!(pairs);

    #[inline(always)]
    unsafe fn codes<const BITS: usize, const PART: usize>(line: *const u8) -> Self::Codes {
        let codes = Self::read(line);
        each!(|i| {
            let x = vreinterpretq_u16_u8(codes[i]);
            vreinterpretq_u8_u16(match (BITS, PART) {
                (4, 0) => vandq_u16(x, vdupq_n_u16(15)),
                (4, 1) => vandq_u16(vshrq_n_u16::<8>(x), vdupq_n_u16(15)),
                (4, 2) => vandq_u16(vshrq_n_u16::<4>(x), vdupq_n_u16(15)),
                (4, _) => vshrq_n_u16::<12>(x),
                (_, 0) => vandq_u16(x, vdupq_n_u16(255)),
                (_, _) => vshrq_n_u16::<8>(x),
            })
        })
    }

    #[inline(always)]
    unsafe fn dot<const P: usize, const I: usize>(
        sums: &mut [Self::Sums; P],
        codes: [Self::Codes; P],
        words: *const u32,
    ) {
        let word = vreinterpretq_s16_u32(vld1q_dup_u32(words.add(I)));
        for p in 0..P {
            sums[p] = each!(|i| {
                let codes = vreinterpretq_s16_u8(codes[p][i]);
                let (low, high) = (vmull_s16(vget_low_s16(codes), vget_low_s16(word)), vmull_high_s16(codes, word));
                vaddq_s32(sums[p][i], vpaddq_s32(low, high))
            });
        }
    }
}

impl Dot for Dotprod {
    const ROWS: usize = 4;
    const UNPACKED_ROWS: usize = 6;
    const PAIRS: bool = false;
    // Codes are signed, as x's are: of 8 bits, what the zero point leaves.
    const OFFSET: i32 = 128;
    registers!(dotprod);

    #[inline(always)]
    unsafe fn codes<const BITS: usize, const PART: usize>(line: *const u8) -> Self::Codes {
        let codes = Self::read(line);
        each!(|i| match (BITS, PART) {
            (4, 0) => vandq_u8(codes[i], vdupq_n_u8(15)),
            (4, _) => vshrq_n_u8::<4>(codes[i]),
            (_, _) => veorq_u8(codes[i], vdupq_n_u8(128)),
        })
    }

    #[inline(always)]
    unsafe fn dot<const P: usize, const I: usize>(
        sums: &mut [Self::Sums; P],
        codes: [Self::Codes; P],
        words: *const u32,
    ) {
        let word = vreinterpretq_s8_u32(vld1q_dup_u32(words.add(I)));
        for p in 0..P {
            sums[p] = each!(|i| sdot(sums[p][i], vreinterpretq_s8_u8(codes[p][i]), word));
        }
    }
}
