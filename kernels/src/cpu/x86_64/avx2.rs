//! AVX2: codes and groups in registers of 8 float32.
// SAFETY of all that is unsafe here: the instructions are enabled, and pointers are valid for what is read or written
// (see Simd).
#![expect(unsafe_op_in_unsafe_fn, reason = "one reason for all, above")]

use std::arch::x86_64::*;

use half::f16;
use kvcache_simd::{Avx2, E4M3_LEAST_NORMAL, E4M3_ROUNDER, Float, Simd};

use super::super::generic::group::product;
use super::super::generic::lane_tables::{all_scale_lanes, maximum_lanes, scale_lanes};
use super::super::generic::quant_simd::QuantSimd;
use super::f16_maxima;

/// Sixteen codes, one a byte. A NaN's is the smallest int32, whose low byte is 0.
#[inline(always)]
unsafe fn bytes(codes: [__m256i; 2]) -> __m128i {
    let low = _mm256_set1_epi32(0xff);
    // Of each half of a register its four codes, in turns of the registers.
    let words = _mm256_packus_epi32(_mm256_and_si256(codes[0], low), _mm256_and_si256(codes[1], low));
    let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
    _mm_shuffle_epi32::<0b11_01_10_00>(bytes)
}

/// Sixteen codes of at most 7, larger ones made that, two a byte, in the low half. The code of NaN becomes -128, whose
/// low four bits are 0.
#[inline(always)]
unsafe fn nibbles(codes: [__m256i; 2]) -> __m128i {
    // In the order of `bytes`.
    let words = _mm256_packs_epi32(codes[0], codes[1]);
    let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
    let bytes = _mm_shuffle_epi32::<0b11_01_10_00>(_mm_min_epi8(bytes, _mm_set1_epi8(7)));
    let pairs = _mm_maddubs_epi16(_mm_and_si128(bytes, _mm_set1_epi8(0x0f)), _mm_set1_epi16(0x1001));
    _mm_packus_epi16(pairs, pairs)
}

/// The larger of each two halves, as integers with a sign or without.
#[inline(always)]
unsafe fn larger<const SIGNED: bool>(a: __m256i, b: __m256i) -> __m256i {
    if SIGNED { _mm256_max_epi16(a, b) } else { _mm256_max_epu16(a, b) }
}

/// The maxima of eight registers, or of the eight halves of four registers of 16 with groups of 8.
#[inline(always)]
unsafe fn horizontal_maxima<const GROUP: usize, const SIGNED: bool>(mut registers: [__m256i; 8]) -> __m128i {
    // Neighbors become one: pairs of halves, then of fours, of both registers.
    let mut left = if GROUP == 8 { 4 } else { 8 };
    left /= 2;
    for i in 0..left {
        let [a, b] = [registers[2 * i], registers[2 * i + 1]];
        registers[i] = larger::<SIGNED>(_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
    }
    left /= 2;
    for i in 0..left {
        let [a, b] = [registers[2 * i], registers[2 * i + 1]];
        registers[i] = larger::<SIGNED>(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    }
    let [a, b] = if GROUP == 8 { [registers[0]; 2] } else { [registers[0], registers[1]] };
    let x = larger::<SIGNED>(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let (low, high) = (_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    match (GROUP, SIGNED) {
        // Each register had a group in either half.
        (8, _) => _mm_unpacklo_epi16(low, high),
        (_, true) => _mm_max_epi16(low, high),
        (_, false) => _mm_max_epu16(low, high),
    }
}

impl<const NARROW: bool> QuantSimd for Avx2<NARROW> {
    type Narrow = Avx2<true>;
    type Code = __m256i;

    #[inline(always)]
    unsafe fn abs(x: __m256) -> __m256 {
        _mm256_andnot_ps(_mm256_set1_ps(-0.0), x)
    }

    #[inline(always)]
    unsafe fn max_bits<const SIGNED: bool>(a: __m256, b: __m256) -> __m256 {
        let (a, b) = (_mm256_castps_si256(a), _mm256_castps_si256(b));
        _mm256_castsi256_ps(if SIGNED { _mm256_max_epi32(a, b) } else { _mm256_max_epu32(a, b) })
    }

    #[inline(always)]
    unsafe fn max_pairs<const SIGNED: bool>(a: __m256, b: __m256) -> __m256 {
        let (firsts, seconds) = (_mm256_shuffle_ps::<0b10_00_10_00>(a, b), _mm256_shuffle_ps::<0b11_01_11_01>(a, b));
        Self::max_bits::<SIGNED>(firsts, seconds)
    }

    #[inline(always)]
    unsafe fn max_fours<const SIGNED: bool>(a: __m256, b: __m256) -> __m256 {
        let (firsts, seconds) = (_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
        Self::max_bits::<SIGNED>(firsts, seconds)
    }

    #[inline(always)]
    unsafe fn mul_sub_from(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fnmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn codes(x: __m256) -> __m256i {
        _mm256_cvtps_epi32(x)
    }

    #[inline(always)]
    unsafe fn e4m3_codes(number: __m256, x: __m256) -> __m256i {
        let magnitude = _mm256_castps_si256(Self::abs(number));
        let least = _mm256_set1_epi32(E4M3_LEAST_NORMAL as i32);
        let exponent = _mm256_max_epi32(_mm256_and_si256(magnitude, _mm256_set1_epi32(0x7f80_0000)), least);
        let rounder = _mm256_add_epi32(exponent, _mm256_set1_epi32(E4M3_ROUNDER as i32));
        let sum = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(rounder));
        let places = _mm256_sub_epi32(_mm256_castps_si256(sum), rounder);
        let code = _mm256_add_epi32(places, _mm256_srli_epi32::<20>(_mm256_sub_epi32(exponent, least)));
        let sign = _mm256_and_si256(_mm256_srli_epi32::<24>(_mm256_castps_si256(x)), _mm256_set1_epi32(0x80));
        let is_number = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_ORD_Q>(number, number));
        _mm256_and_si256(_mm256_or_si256(code, sign), is_number)
    }

    #[inline(always)]
    unsafe fn write_i8(to: *mut u8, codes: __m256i) {
        _mm_storel_epi64(to.cast(), bytes([codes; 2]))
    }

    #[inline(always)]
    unsafe fn write_i4(to: *mut u8, codes: __m256i) {
        to.cast::<i32>().write_unaligned(_mm_cvtsi128_si32(nibbles([codes; 2])))
    }

    #[inline(always)]
    unsafe fn write_two_i8(to: *mut u8, codes: [__m256i; 2]) {
        _mm_storeu_si128(to.cast(), bytes(codes))
    }

    #[inline(always)]
    unsafe fn write_two_i4(to: *mut u8, codes: [__m256i; 2]) {
        _mm_storel_epi64(to.cast(), nibbles(codes))
    }

    #[inline(always)]
    unsafe fn permute_maxima<const GROUP: usize>(maxima: __m256) -> __m256 {
        let lanes = const { maximum_lanes::<8>(GROUP) };
        _mm256_permutevar8x32_ps(maxima, _mm256_loadu_si256(lanes.as_ptr().cast()))
    }

    #[inline(always)]
    unsafe fn broadcast_scales<const GROUP: usize>(scales: __m256, k: usize) -> __m256 {
        let lanes = &const { all_scale_lanes::<8>(GROUP) }[k];
        _mm256_permutevar8x32_ps(scales, _mm256_loadu_si256(lanes.as_ptr().cast()))
    }

    #[inline(always)]
    unsafe fn broadcast_numbers<const GROUP: usize>(numbers: *const f32) -> __m256 {
        let numbers = match Self::LANES / GROUP {
            1 => return _mm256_set1_ps(numbers.read()),
            2 => _mm256_castpd_ps(_mm256_set1_pd(numbers.cast::<f64>().read_unaligned())),
            4 => _mm256_castps128_ps256(_mm_loadu_ps(numbers)),
            _ => return _mm256_loadu_ps(numbers),
        };
        let groups = const { scale_lanes::<8>(GROUP, 0) };
        _mm256_permutevar8x32_ps(numbers, _mm256_loadu_si256(groups.as_ptr().cast()))
    }

    /// By the bits of the halves, sixteen at a time: see [`f16_maxima`](super::f16_maxima).
    #[inline(always)]
    unsafe fn maxima_f16<const GROUP: usize, const WITH_SIGN: bool>(
        values: *const f16,
        count: usize,
        unit: usize,
    ) -> Option<__m256> {
        if GROUP < 8 || (GROUP == 8 && count < 8) {
            return None;
        }
        let all_but_sign = _mm_set1_epi16(0x7fff);
        let key = |x| if WITH_SIGN { x } else { _mm256_and_si256(x, _mm256_broadcastsi128_si256(all_but_sign)) };
        let [mut unsigned, mut signed] = [[_mm256_setzero_si256(); 8]; 2];
        for k in 0..if GROUP == 8 { 4 } else { count } {
            let values = values.add(if GROUP == 8 { 16 * k } else { k * unit });
            unsigned[k] = key(if GROUP == 8 || unit >= 16 {
                _mm256_loadu_si256(values.cast())
            } else {
                _mm256_set_m128i(_mm_loadu_si128(values.add(unit - 8).cast()), _mm_loadu_si128(values.cast()))
            });
            signed[k] = unsigned[k];
            let mut i = 16;
            while GROUP > 8 && i < unit {
                let x = key(_mm256_loadu_si256(values.add(i.min(unit - 16)).cast()));
                (unsigned[k], signed[k]) = (larger::<false>(unsigned[k], x), larger::<true>(signed[k], x));
                i += 16;
            }
        }
        let mut maxima = horizontal_maxima::<GROUP, false>(unsigned);
        let magnitudes = _mm_and_si128(maxima, all_but_sign);
        let mut largest = magnitudes;
        if WITH_SIGN {
            let signed = horizontal_maxima::<GROUP, true>(signed);
            let of_signed = _mm_and_si128(signed, all_but_sign);
            largest = _mm_max_epi16(magnitudes, of_signed);
            maxima = _mm_blendv_epi8(maxima, signed, _mm_cmpgt_epi16(of_signed, magnitudes));
        }
        let is_nan = _mm_cmpgt_epi16(largest, _mm_set1_epi16(f16_maxima::INFINITY));
        if _mm_movemask_epi8(is_nan) != 0 {
            return None;
        }
        let maxima = _mm256_cvtph_ps(maxima);
        Some(if WITH_SIGN { Self::rank(maxima) } else { maxima })
    }

    #[inline(always)]
    unsafe fn decode_group_i4<V: Float, T: Float, const STREAM: bool>(
        cache: *const u8,
        values: *mut V,
        s: __m256,
        len: usize,
    ) -> bool {
        if !V::IS_F16 || len < 32 {
            return false;
        }
        // The value of each nibble, of which the low bytes are one table, and the high bytes another.
        let split = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        let zero_to_seven = product::<Self, V, T>(_mm256_setr_ps(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), s);
        let negative = product::<Self, V, T>(_mm256_setr_ps(-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0), s);
        let low = _mm_shuffle_epi8(Self::to_f16(zero_to_seven), split);
        let high = _mm_shuffle_epi8(Self::to_f16(negative), split);
        let lows = _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(low, high));
        let highs = _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(low, high));
        let mut i = 0;
        while i < len {
            let at = i.min(len - 32);
            let bytes = _mm_loadu_si128(cache.add(at / 2).cast());
            let mask = _mm_set1_epi8(0x0f);
            let (even, odd) = (_mm_and_si128(bytes, mask), _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask));
            let (first, second) = (_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd));
            // Of each half of a register, the first eight codes become the first one's values, the others the second's.
            let codes = _mm256_set_m128i(_mm_unpackhi_epi64(first, second), _mm_unpacklo_epi64(first, second));
            let (l, h) = (_mm256_shuffle_epi8(lows, codes), _mm256_shuffle_epi8(highs, codes));
            let halves = [_mm256_unpacklo_epi8(l, h), _mm256_unpackhi_epi8(l, h)];
            for (k, halves) in halves.into_iter().enumerate() {
                let to = values.add(at + 16 * k);
                let (low, high) = (_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
                if STREAM {
                    Self::stream_two_u16(to.cast(), [low, high])
                } else {
                    _mm256_storeu_si256(to.cast(), halves)
                }
            }
            i += 32;
        }
        true
    }
}
