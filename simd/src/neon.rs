//! NEON: two registers of 4 float32 are one of 8.
//!
//! All is in ARMv8.0, conversions from and to float16 too. The default state of the processor is assumed, as the
//! compiler does: roundings to nearest, ties to even, and no subnormal number flushed to zero.
// SAFETY of all that is unsafe here: the instructions are enabled, and pointers are valid for what is read or written
// (see Simd).
#![expect(unsafe_op_in_unsafe_fn, reason = "one reason for all, above")]

use std::arch::aarch64::*;

use crate::simd::{Function, Outlined, Simd};

/// NEON, of little-endian machines. It streams nothing: there are non-temporal stores of pairs of registers alone, and
/// no instruction that orders them but barriers of all memory.
#[derive(Debug, Clone, Copy)]
pub struct Neon;

#[target_feature(enable = "neon")]
unsafe fn outlined<F: Function<Neon>>(arguments: &F::Arguments<'_>) -> F::Output {
    // SAFETY: the instructions are enabled here; the arguments are as `F` requires.
    F::run(arguments)
}

/// Functions of registers that are an expression of one of the two of each.
macro_rules! one_by_one {
    ($($name:ident($($x:ident),*) = $result:expr;)*) => { $(
        #[inline(always)]
        unsafe fn $name($($x: [float32x4_t; 2]),*) -> [float32x4_t; 2] {
            let low = {
                $(let $x = $x[0];)*
                $result
            };
            $(let $x = $x[1];)*
            [low, $result]
        }
    )* };
}

/// The lanes' bits.
#[inline(always)]
unsafe fn bits(x: float32x4_t) -> uint32x4_t {
    vreinterpretq_u32_f32(x)
}

/// Lanes of these bits.
#[inline(always)]
unsafe fn lanes(bits: uint32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(bits)
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
    type U16 = uint16x8_t;

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
    unsafe fn read_u16(from: *const u16) -> uint16x8_t {
        vld1q_u16(from)
    }

    #[inline(always)]
    unsafe fn write_u16(to: *mut u16, x: uint16x8_t) {
        vst1q_u16(to, x)
    }

    #[inline(always)]
    unsafe fn from_f16(x: uint16x8_t) -> [float32x4_t; 2] {
        let [low, high] = [vreinterpret_f16_u16(vget_low_u16(x)), vreinterpret_f16_u16(vget_high_u16(x))];
        [vcvt_f32_f16(low), vcvt_f32_f16(high)]
    }

    #[inline(always)]
    unsafe fn to_f16(x: [float32x4_t; 2]) -> uint16x8_t {
        let [low, high] = [vreinterpret_u16_f16(vcvt_f16_f32(x[0])), vreinterpret_u16_f16(vcvt_f16_f32(x[1]))];
        vcombine_u16(low, high)
    }

    #[inline(always)]
    unsafe fn from_high_halves(x: uint16x8_t) -> [float32x4_t; 2] {
        [lanes(vshll_n_u16::<16>(vget_low_u16(x))), lanes(vshll_n_u16::<16>(vget_high_u16(x)))]
    }

    #[inline(always)]
    unsafe fn high_halves(x: [float32x4_t; 2]) -> uint16x8_t {
        vcombine_u16(vshrn_n_u32::<16>(bits(x[0])), vshrn_n_u32::<16>(bits(x[1])))
    }

    #[inline(always)]
    unsafe fn read_e4m3(from: *const u8) -> [float32x4_t; 2] {
        // As float16 of 1/256 of the values; a NaN is 0x7e00 with its sign.
        let codes = vreinterpretq_u16_s16(vshlq_n_s16::<7>(vmovl_s8(vld1_s8(from.cast()))));
        let (halves, all) = (vandq_u16(codes, vdupq_n_u16(0xbf80)), vdupq_n_u16(0x3f80));
        let is_nan = vceqq_u16(vandq_u16(halves, all), all);
        let halves = veorq_u16(halves, vandq_u16(is_nan, vdupq_n_u16(0x3f80 ^ 0x7e00)));
        Self::mul(Self::from_f16(halves), Self::splat(256.0))
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
    unsafe fn swap<const DISTANCE: usize>([low, high]: [float32x4_t; 2]) -> [float32x4_t; 2] {
        match DISTANCE {
            1 => [vrev64q_f32(low), vrev64q_f32(high)],
            2 => [vextq_f32::<2>(low, low), vextq_f32::<2>(high, high)],
            _ => [high, low],
        }
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

    one_by_one! {
        add(a, b) = vaddq_f32(a, b);
        sub(a, b) = vsubq_f32(a, b);
        mul(a, b) = vmulq_f32(a, b);
        div(a, b) = vdivq_f32(a, b);
        mul_add(a, b, c) = vfmaq_f32(c, a, b);
        // Not the instruction for maxima, which gives NaN where one is NaN.
        max(a, b) = vbslq_f32(vcgtq_f32(a, b), a, b);
        if_equal(a, b, then, otherwise) = vbslq_f32(vceqq_f32(a, b), then, otherwise);
        add_bits(a, b) = lanes(vaddq_u32(bits(a), bits(b)));
        and_bits(a, b) = lanes(vandq_u32(bits(a), bits(b)));
        or_bits(a, b) = lanes(vorrq_u32(bits(a), bits(b)));
    }

    #[inline(always)]
    unsafe fn shift_right<const BITS: i32>(x: [float32x4_t; 2]) -> [float32x4_t; 2] {
        [lanes(vshrq_n_u32::<BITS>(bits(x[0]))), lanes(vshrq_n_u32::<BITS>(bits(x[1])))]
    }
}
