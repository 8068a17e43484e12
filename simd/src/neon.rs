//! NEON: two registers of 4 float32 are one of 8.
//!
//! All is in ARMv8.0, conversions from and to float16 too. The default state of the processor is assumed, as the
//! compiler does: roundings to nearest, ties to even, and no subnormal number flushed to zero.
// SAFETY of all that is unsafe here: the instructions are enabled, and pointers are valid for what is read or written
// (see Simd).
#![expect(unsafe_op_in_unsafe_fn, reason = "one reason for all, above")]

use std::arch::aarch64::*;

use half::{bf16, f16};

use crate::outline::{Function, Outlined};
use crate::simd::Simd;

/// NEON, of little-endian machines. It streams nothing: there are non-temporal stores of pairs of registers alone, and
/// no instruction that orders them but barriers of all memory.
#[derive(Debug, Clone, Copy)]
pub struct Neon;

#[target_feature(enable = "neon")]
unsafe fn outlined<F: Function<Neon>>(arguments: &F::Arguments<'_>) -> F::Output {
    // SAFETY: the instructions are enabled here; the arguments are as `F` requires.
    F::run(arguments)
}

/// Eight float16, rounded to nearest, ties to even.
#[inline(always)]
unsafe fn halves(x: [float32x4_t; 2]) -> uint16x8_t {
    let [low, high] = [vreinterpret_u16_f16(vcvt_f16_f32(x[0])), vreinterpret_u16_f16(vcvt_f16_f32(x[1]))];
    vcombine_u16(low, high)
}

/// The values of eight float16.
#[inline(always)]
unsafe fn values(halves: uint16x8_t) -> [float32x4_t; 2] {
    let [low, high] = [vreinterpret_f16_u16(vget_low_u16(halves)), vreinterpret_f16_u16(vget_high_u16(halves))];
    [vcvt_f32_f16(low), vcvt_f32_f16(high)]
}

/// Four float32, rounded to bfloat16; a NaN becomes quiet.
#[inline(always)]
unsafe fn nearest_bf16(x: float32x4_t) -> float32x4_t {
    let bits = vreinterpretq_u32_f32(x);
    let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
    let nearest = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
    let rounded = vbslq_u32(vceqq_f32(x, x), nearest, quiet);
    vreinterpretq_f32_u32(vandq_u32(rounded, vdupq_n_u32(0xffff_0000)))
}

/// Eight int8 as float32.
#[inline(always)]
unsafe fn floats(codes: int8x8_t) -> [float32x4_t; 2] {
    let codes = vmovl_s8(codes);
    [vcvtq_f32_s32(vmovl_s16(vget_low_s16(codes))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(codes)))]
}

impl Simd for Neon {
    const LANES: usize = 8;
    type F32 = [float32x4_t; 2];

    fn outlined<F: Function<Self>>() -> Outlined<Self, F> {
        outlined::<F>
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> [float32x4_t; 2] {
        [vdupq_n_f32(x); 2]
    }

    #[inline(always)]
    unsafe fn read_f32(from: *const f32) -> [float32x4_t; 2] {
        [vld1q_f32(from), vld1q_f32(from.add(4))]
    }

    #[inline(always)]
    unsafe fn write_f32(to: *mut f32, x: [float32x4_t; 2]) {
        vst1q_f32(to, x[0]);
        vst1q_f32(to.add(4), x[1]);
    }

    #[inline(always)]
    unsafe fn read_f16(from: *const f16) -> [float32x4_t; 2] {
        values(vld1q_u16(from.cast()))
    }

    #[inline(always)]
    unsafe fn write_f16(to: *mut f16, x: [float32x4_t; 2]) {
        vst1q_u16(to.cast(), halves(x))
    }

    #[inline(always)]
    unsafe fn round_f16(x: [float32x4_t; 2]) -> [float32x4_t; 2] {
        values(halves(x))
    }

    #[inline(always)]
    unsafe fn read_bf16(from: *const bf16) -> [float32x4_t; 2] {
        let high = vld1q_u16(from.cast());
        let [low, high] = [vshll_n_u16::<16>(vget_low_u16(high)), vshll_n_u16::<16>(vget_high_u16(high))];
        [vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high)]
    }

    #[inline(always)]
    unsafe fn write_bf16(to: *mut bf16, x: [float32x4_t; 2]) {
        let [low, high] = Self::round_bf16(x);
        let low = vshrn_n_u32::<16>(vreinterpretq_u32_f32(low));
        let high = vshrn_n_u32::<16>(vreinterpretq_u32_f32(high));
        vst1q_u16(to.cast(), vcombine_u16(low, high));
    }

    #[inline(always)]
    unsafe fn round_bf16(x: [float32x4_t; 2]) -> [float32x4_t; 2] {
        [nearest_bf16(x[0]), nearest_bf16(x[1])]
    }

    #[inline(always)]
    unsafe fn read_e4m3(from: *const u8) -> [float32x4_t; 2] {
        // As float16 of 1/256 of the values; a NaN is 0x7e00 with its sign.
        let codes = vreinterpretq_u16_s16(vshlq_n_s16::<7>(vmovl_s8(vld1_s8(from.cast()))));
        let (halves, all) = (vandq_u16(codes, vdupq_n_u16(0xbf80)), vdupq_n_u16(0x3f80));
        let is_nan = vceqq_u16(vandq_u16(halves, all), all);
        let halves = veorq_u16(halves, vandq_u16(is_nan, vdupq_n_u16(0x3f80 ^ 0x7e00)));
        values(halves).map(|x| vmulq_n_f32(x, 256.0))
    }

    #[inline(always)]
    unsafe fn read_i8(from: *const u8) -> [float32x4_t; 2] {
        floats(vld1_s8(from.cast()))
    }

    #[inline(always)]
    unsafe fn read_i4(from: *const u8) -> [float32x4_t; 2] {
        let bytes = vreinterpret_s8_u32(vdup_n_u32(from.cast::<u32>().read_unaligned()));
        // The low nibble is moved to the top and back, with its sign.
        let [firsts, seconds] = [vshr_n_s8::<4>(vshl_n_s8::<4>(bytes)), vshr_n_s8::<4>(bytes)];
        floats(vzip1_s8(firsts, seconds))
    }

    #[inline(always)]
    unsafe fn i8_of_four(lanes: [float32x4_t; 2], i: usize) -> [float32x4_t; 2] {
        let mut codes = lanes;
        for codes in &mut codes {
            let top = vshlq_s32(vreinterpretq_s32_f32(*codes), vdupq_n_s32(24 - 8 * i as i32));
            *codes = vcvtq_f32_s32(vshrq_n_s32::<24>(top));
        }
        codes
    }

    #[inline(always)]
    unsafe fn i4_of_eight(lanes: [float32x4_t; 2], i: usize) -> [float32x4_t; 2] {
        let mut codes = lanes;
        for codes in &mut codes {
            let top = vshlq_s32(vreinterpretq_s32_f32(*codes), vdupq_n_s32(28 - 4 * i as i32));
            *codes = vcvtq_f32_s32(vshrq_n_s32::<28>(top));
        }
        codes
    }

    #[inline(always)]
    unsafe fn add(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn sub(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn mul(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn div(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn mul_add(a: [float32x4_t; 2], b: [float32x4_t; 2], c: [float32x4_t; 2]) -> [float32x4_t; 2] {
        [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn max(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        // Not the instruction for maxima, which gives NaN where one is NaN.
        let [low, high] = [vcgtq_f32(a[0], b[0]), vcgtq_f32(a[1], b[1])];
        [vbslq_f32(low, a[0], b[0]), vbslq_f32(high, a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn if_equal(
        a: [float32x4_t; 2],
        b: [float32x4_t; 2],
        then: [float32x4_t; 2],
        otherwise: [float32x4_t; 2],
    ) -> [float32x4_t; 2] {
        let [low, high] = [vceqq_f32(a[0], b[0]), vceqq_f32(a[1], b[1])];
        [vbslq_f32(low, then[0], otherwise[0]), vbslq_f32(high, then[1], otherwise[1])]
    }
}
