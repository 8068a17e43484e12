//! NEON: codes and groups in two registers of 4 float32.
// SAFETY of all that is unsafe here: the instructions are enabled, and pointers are valid for what is read or written
// (see Simd).
#![expect(unsafe_op_in_unsafe_fn, reason = "one reason for all, above")]

use std::arch::aarch64::*;

use kvcache_simd::{E4M3_LEAST_NORMAL, E4M3_ROUNDER, Neon, Simd};

use super::generic::lane_tables::{all_scale_lanes, maximum_lanes};
use super::generic::quant_simd::QuantSimd;

/// Float32 values in two registers.
const LANES: usize = 8;

/// The bytes of these lanes, in two registers.
const fn bytes_of_lanes(lanes: [i32; LANES]) -> [u8; 4 * LANES] {
    let mut bytes = [0; 4 * LANES];
    let mut i = 0;
    while i < bytes.len() {
        bytes[i] = (4 * lanes[i / 4]) as u8 + (i % 4) as u8;
        i += 1;
    }
    bytes
}

/// [`bytes_of_lanes`] of every table of [`all_scale_lanes`].
const fn bytes_of_scales(group: usize) -> [[u8; 4 * LANES]; LANES] {
    let lanes = all_scale_lanes::<LANES>(group);
    let mut tables = [[0; 4 * LANES]; LANES];
    let mut k = 0;
    while k < LANES {
        tables[k] = bytes_of_lanes(lanes[k]);
        k += 1;
    }
    tables
}

/// The lanes whose bytes the table names.
#[inline(always)]
unsafe fn permute(x: [float32x4_t; 2], bytes: &[u8; 4 * LANES]) -> [float32x4_t; 2] {
    // SAFETY: the instructions are enabled (see Simd); the table is 32 bytes.
    let x = uint8x16x2_t(vreinterpretq_u8_f32(x[0]), vreinterpretq_u8_f32(x[1]));
    let [low, high] = [vld1q_u8(bytes.as_ptr()), vld1q_u8(bytes.as_ptr().add(16))];
    [vreinterpretq_f32_u8(vqtbl2q_u8(x, low)), vreinterpretq_f32_u8(vqtbl2q_u8(x, high))]
}

/// The low bytes of eight codes. A NaN's is 0.
#[inline(always)]
unsafe fn bytes(codes: [int32x4_t; 2]) -> uint8x8_t {
    let halves = vcombine_s16(vmovn_s32(codes[0]), vmovn_s32(codes[1]));
    vreinterpret_u8_s8(vmovn_s16(halves))
}

/// The low four bits of 16 codes of at most 7, larger ones made that, two a byte.
#[inline(always)]
unsafe fn nibbles(bytes: uint8x16_t) -> uint8x8_t {
    let pairs = vreinterpretq_u16_s8(vminq_s8(vreinterpretq_s8_u8(bytes), vdupq_n_s8(7)));
    let firsts = vandq_u16(pairs, vdupq_n_u16(0x0f));
    // The second of a pair is its high byte.
    let seconds = vandq_u16(vshrq_n_u16::<4>(pairs), vdupq_n_u16(0xf0));
    vmovn_u16(vorrq_u16(firsts, seconds))
}

/// Four codes of [`QuantSimd::e4m3_codes`].
#[inline(always)]
unsafe fn nearest_e4m3(number: float32x4_t, x: float32x4_t) -> int32x4_t {
    let magnitude = vabsq_f32(number);
    let least = vdupq_n_u32(E4M3_LEAST_NORMAL);
    let exponent = vmaxq_u32(vandq_u32(vreinterpretq_u32_f32(magnitude), vdupq_n_u32(0x7f80_0000)), least);
    let rounder = vaddq_u32(exponent, vdupq_n_u32(E4M3_ROUNDER));
    let sum = vaddq_f32(magnitude, vreinterpretq_f32_u32(rounder));
    let places = vsubq_u32(vreinterpretq_u32_f32(sum), rounder);
    let code = vaddq_u32(places, vshrq_n_u32::<20>(vsubq_u32(exponent, least)));
    let sign = vandq_u32(vshrq_n_u32::<24>(vreinterpretq_u32_f32(x)), vdupq_n_u32(0x80));
    vreinterpretq_s32_u32(vandq_u32(vorrq_u32(code, sign), vceqq_f32(number, number)))
}

/// The larger of each two numbers, by their bits as integers with a sign or without.
#[inline(always)]
unsafe fn larger<const SIGNED: bool>(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    if SIGNED {
        return vreinterpretq_f32_s32(vmaxq_s32(vreinterpretq_s32_f32(a), vreinterpretq_s32_f32(b)));
    }
    vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b)))
}

/// The larger number of each pair of neighbors, of `a`'s and then of `b`'s, in that order.
#[inline(always)]
unsafe fn larger_neighbors<const SIGNED: bool>(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    if SIGNED {
        return vreinterpretq_f32_s32(vpmaxq_s32(vreinterpretq_s32_f32(a), vreinterpretq_s32_f32(b)));
    }
    vreinterpretq_f32_u32(vpmaxq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b)))
}

impl QuantSimd for Neon {
    type Narrow = Self;
    type Code = [int32x4_t; 2];

    #[inline(always)]
    unsafe fn mul_sub_from(a: [float32x4_t; 2], b: [float32x4_t; 2], c: [float32x4_t; 2]) -> [float32x4_t; 2] {
        [vfmsq_f32(c[0], a[0], b[0]), vfmsq_f32(c[1], a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn abs(x: [float32x4_t; 2]) -> [float32x4_t; 2] {
        [vabsq_f32(x[0]), vabsq_f32(x[1])]
    }

    #[inline(always)]
    unsafe fn max_bits<const SIGNED: bool>(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        [larger::<SIGNED>(a[0], b[0]), larger::<SIGNED>(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn max_pairs<const SIGNED: bool>(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        [larger_neighbors::<SIGNED>(a[0], b[0]), larger_neighbors::<SIGNED>(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn max_fours<const SIGNED: bool>(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        [larger::<SIGNED>(a[0], a[1]), larger::<SIGNED>(b[0], b[1])]
    }

    #[inline(always)]
    unsafe fn codes(x: [float32x4_t; 2]) -> [int32x4_t; 2] {
        // The instruction gives 0 for NaN.
        [vcvtnq_s32_f32(x[0]), vcvtnq_s32_f32(x[1])]
    }

    #[inline(always)]
    unsafe fn e4m3_codes(number: [float32x4_t; 2], x: [float32x4_t; 2]) -> [int32x4_t; 2] {
        [nearest_e4m3(number[0], x[0]), nearest_e4m3(number[1], x[1])]
    }

    #[inline(always)]
    unsafe fn write_i8(to: *mut u8, codes: [int32x4_t; 2]) {
        vst1_u8(to, bytes(codes))
    }

    #[inline(always)]
    unsafe fn write_i4(to: *mut u8, codes: [int32x4_t; 2]) {
        let bytes = bytes(codes);
        let nibbles = vreinterpret_u32_u8(nibbles(vcombine_u8(bytes, bytes)));
        to.cast::<u32>().write_unaligned(vget_lane_u32::<0>(nibbles));
    }

    #[inline(always)]
    unsafe fn write_two_i8(to: *mut u8, codes: [[int32x4_t; 2]; 2]) {
        vst1q_u8(to, vcombine_u8(bytes(codes[0]), bytes(codes[1])))
    }

    #[inline(always)]
    unsafe fn write_two_i4(to: *mut u8, codes: [[int32x4_t; 2]; 2]) {
        vst1_u8(to, nibbles(vcombine_u8(bytes(codes[0]), bytes(codes[1]))))
    }

    #[inline(always)]
    unsafe fn permute_maxima<const GROUP: usize>(maxima: [float32x4_t; 2]) -> [float32x4_t; 2] {
        permute(maxima, &const { bytes_of_lanes(maximum_lanes::<LANES>(GROUP)) })
    }

    #[inline(always)]
    unsafe fn broadcast_scales<const GROUP: usize>(scales: [float32x4_t; 2], k: usize) -> [float32x4_t; 2] {
        permute(scales, &const { bytes_of_scales(GROUP) }[k])
    }

    #[inline(always)]
    unsafe fn broadcast_numbers<const GROUP: usize>(numbers: *const f32) -> [float32x4_t; 2] {
        match LANES / GROUP {
            1 => Self::splat(numbers.read()),
            2 => [vdupq_n_f32(numbers.read()), vdupq_n_f32(numbers.add(1).read())],
            4 => {
                let numbers = vld1q_f32(numbers);
                [vzip1q_f32(numbers, numbers), vzip2q_f32(numbers, numbers)]
            }
            _ => Self::read_f32(numbers),
        }
    }
}
