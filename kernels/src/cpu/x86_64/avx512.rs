//! AVX-512: codes and groups in registers of 16 float32.
// SAFETY of all that is unsafe here: the instructions are enabled, and pointers are valid for what is read or written
// (see Simd).
#![expect(unsafe_op_in_unsafe_fn, reason = "one reason for all, above")]

use std::arch::x86_64::*;

use half::f16;
use kvcache_simd::{Avx2, Avx512, E4M3_LEAST_NORMAL, E4M3_ROUNDER, Float, Simd, VALUE_OF_NIBBLE, nibbles};

use super::super::code_type::CodeType;
use super::super::generic::group::product;
use super::super::generic::lane_tables::{all_scale_lanes, maximum_lanes, scale_lanes};
use super::super::generic::quant_simd::{QuantSimd, last_inside};
use super::{f16_maxima, native_f16};

/// Rounds to nearest, ties to even, without exceptions.
pub(super) const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// The truth table of "if a then b else c".
const CHOOSE: i32 = 0xca;

/// The low halves of the lanes of two registers.
const LOW_HALVES: [i16; 32] = {
    let mut halves = [0; 32];
    let mut i = 0;
    while i < 32 {
        halves[i] = 2 * i as i16;
        i += 1;
    }
    halves
};

impl<const NATIVE_F16: bool> QuantSimd for Avx512<NATIVE_F16> {
    const NATIVE_F16: bool = NATIVE_F16;
    const RANKS: bool = true;
    type Narrow = Avx2<true>;
    type Code = __m512i;

    #[inline(always)]
    unsafe fn abs(x: __m512) -> __m512 {
        _mm512_abs_ps(x)
    }

    #[inline(always)]
    unsafe fn rank(x: __m512) -> __m512 {
        _mm512_castsi512_ps(_mm512_rol_epi32::<1>(_mm512_castps_si512(x)))
    }

    #[inline(always)]
    unsafe fn max_bits<const SIGNED: bool>(a: __m512, b: __m512) -> __m512 {
        let (a, b) = (_mm512_castps_si512(a), _mm512_castps_si512(b));
        _mm512_castsi512_ps(if SIGNED { _mm512_max_epi32(a, b) } else { _mm512_max_epu32(a, b) })
    }

    #[inline(always)]
    unsafe fn max_pairs<const SIGNED: bool>(a: __m512, b: __m512) -> __m512 {
        let (firsts, seconds) = (_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b));
        Self::max_bits::<SIGNED>(firsts, seconds)
    }

    #[inline(always)]
    unsafe fn max_fours<const SIGNED: bool>(a: __m512, b: __m512) -> __m512 {
        let (firsts, seconds) =
            (_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
        Self::max_bits::<SIGNED>(firsts, seconds)
    }

    #[inline(always)]
    unsafe fn mul_sub_from(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fnmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn codes(x: __m512) -> __m512i {
        _mm512_cvtps_epi32(x)
    }

    #[inline(always)]
    unsafe fn e4m3_codes(number: __m512, x: __m512) -> __m512i {
        let magnitude = _mm512_castps_si512(Self::abs(number));
        let least = _mm512_set1_epi32(E4M3_LEAST_NORMAL as i32);
        let exponent = _mm512_max_epi32(_mm512_and_si512(magnitude, _mm512_set1_epi32(0x7f80_0000)), least);
        let rounder = _mm512_add_epi32(exponent, _mm512_set1_epi32(E4M3_ROUNDER as i32));
        let sum = _mm512_add_ps(_mm512_castsi512_ps(magnitude), _mm512_castsi512_ps(rounder));
        let places = _mm512_sub_epi32(_mm512_castps_si512(sum), rounder);
        let code = _mm512_add_epi32(places, _mm512_srli_epi32::<20>(_mm512_sub_epi32(exponent, least)));
        let sign = _mm512_and_si512(_mm512_srli_epi32::<24>(_mm512_castps_si512(x)), _mm512_set1_epi32(0x80));
        let is_number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(number, number);
        _mm512_maskz_or_epi32(is_number, code, sign)
    }

    #[inline(always)]
    unsafe fn write_i8(to: *mut u8, codes: __m512i) {
        // NaN is the smallest int32, whose low byte is 0.
        _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(codes))
    }

    #[inline(always)]
    unsafe fn write_i4(to: *mut u8, codes: __m512i) {
        // Of each pair, the low four bits of the first and of the second; the rest is not kept.
        let codes = _mm512_min_epi32(codes, _mm512_set1_epi32(7));
        let seconds = _mm512_srli_epi64::<28>(codes);
        let pairs = _mm512_ternarylogic_epi64::<CHOOSE>(_mm512_set1_epi64(0x0f), codes, seconds);
        _mm_storel_epi64(to.cast(), _mm512_cvtepi64_epi8(pairs));
    }

    #[inline(always)]
    unsafe fn write_two_i8(to: *mut u8, codes: [__m512i; 2]) {
        Self::write_i8(to, codes[0]);
        Self::write_i8(to.add(16), codes[1]);
    }

    #[inline(always)]
    unsafe fn write_two_i4(to: *mut u8, codes: [__m512i; 2]) {
        // Half as many bits in a code as in `write_i4`: each pair's first half and second half, and then its byte.
        let halves = _mm512_permutex2var_epi16(codes[0], _mm512_loadu_si512(LOW_HALVES.as_ptr().cast()), codes[1]);
        let halves = _mm512_min_epi16(halves, _mm512_set1_epi16(7));
        let seconds = _mm512_srli_epi32::<12>(halves);
        let pairs = _mm512_ternarylogic_epi32::<CHOOSE>(_mm512_set1_epi32(0x0f), halves, seconds);
        _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(pairs));
    }

    #[inline(always)]
    unsafe fn permute_maxima<const GROUP: usize>(maxima: __m512) -> __m512 {
        let lanes = const { maximum_lanes::<16>(GROUP) };
        _mm512_permutexvar_ps(_mm512_loadu_si512(lanes.as_ptr().cast()), maxima)
    }

    #[inline(always)]
    unsafe fn broadcast_scales<const GROUP: usize>(scales: __m512, k: usize) -> __m512 {
        let lanes = &const { all_scale_lanes::<16>(GROUP) }[k];
        _mm512_permutexvar_ps(_mm512_loadu_si512(lanes.as_ptr().cast()), scales)
    }

    #[inline(always)]
    unsafe fn broadcast_numbers<const GROUP: usize>(numbers: *const f32) -> __m512 {
        let numbers = match Self::LANES / GROUP {
            1 => return _mm512_set1_ps(numbers.read()),
            2 => _mm512_castpd_ps(_mm512_set1_pd(numbers.cast::<f64>().read_unaligned())),
            4 => _mm512_broadcast_f32x4(_mm_loadu_ps(numbers)),
            8 => _mm512_castps256_ps512(_mm256_loadu_ps(numbers)),
            _ => return _mm512_loadu_ps(numbers),
        };
        let groups = const { scale_lanes::<16>(GROUP, 0) };
        _mm512_permutexvar_ps(_mm512_loadu_si512(groups.as_ptr().cast()), numbers)
    }

    #[inline(always)]
    unsafe fn maxima_f16<const GROUP: usize, const WITH_SIGN: bool>(
        values: *const f16,
        count: usize,
        unit: usize,
    ) -> Option<__m512> {
        if GROUP < 8 {
            return None;
        }
        let maxima = _mm512_cvtph_ps(f16_maxima::maxima::<GROUP, WITH_SIGN>(values, count, unit)?);
        Some(if WITH_SIGN { Self::rank(maxima) } else { maxima })
    }

    /// A group has no more than sixteen different values: they are made once and looked up.
    #[inline(always)]
    unsafe fn decode_group_i4<V: Float, T: Float, const STREAM: bool>(
        cache: *const u8,
        values: *mut V,
        s: __m512,
        len: usize,
    ) -> bool {
        let table = product::<Self, V, T>(_mm512_loadu_ps(VALUE_OF_NIBBLE.as_ptr()), s);
        if V::IS_F16 && len >= 32 {
            let table = _mm512_castsi256_si512(_mm512_cvtps_ph::<NEAREST>(table));
            let mut i = 0;
            while i < len {
                let at = i.min(len - 32);
                let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(cache.add(at / 2).cast()));
                let pairs = _mm512_or_si512(bytes, _mm512_slli_epi32::<12>(bytes));
                let lanes = _mm512_and_si512(pairs, _mm512_set1_epi32(0x000f_000f));
                let (to, halves) = (values.add(at).cast(), _mm512_permutexvar_epi16(lanes, table));
                if STREAM {
                    _mm512_stream_si512(to, halves)
                } else {
                    _mm512_storeu_si512(to.cast(), halves)
                }
                i += 32;
            }
        } else {
            let mut i = 0;
            while i < len {
                let at = last_inside::<Self>(i, len);
                let lanes = nibbles(_mm_loadl_epi64(cache.add(at / 2).cast()));
                V::write::<Self, STREAM>(values.add(at), _mm512_permutexvar_ps(lanes, table));
                i += Self::LANES;
            }
        }
        true
    }

    #[inline(always)]
    unsafe fn dequantize_native<Q: CodeType, V: Float, const GROUP: usize, const STREAM: bool>(
        cache: *const u8,
        scales: *const f16,
        values: *mut V,
        len: usize,
        group: usize,
    ) -> bool {
        NATIVE_F16
            && Q::BITS.quant_type() == 0
            && native_f16::dequantize::<Q, V, GROUP, STREAM>(cache, scales, values, len, group)
    }

    #[inline(always)]
    unsafe fn encode_native<Q: CodeType, const GROUP: usize>(
        values: *const f16,
        scales: *const f32,
        cache: *mut u8,
        group: usize,
        groups: usize,
        ahead: Option<*const f16>,
    ) {
        native_f16::encode::<Q, GROUP>(values, scales, cache, group, groups, ahead)
    }
}
