//! AVX-512: groups of neighbors that share a scale.

use std::arch::x86_64::*;

use half::f16;

use super::super::elements::Codes;
use super::super::generic::group::{Groups, maxima_in_registers, product};
use super::super::generic::lane_tables::{all_scale_lanes, maximum_lanes, scale_lanes};
use super::super::generic::lanes::FloatLanes;
use super::super::generic::simd::{Simd, last_inside};
use super::avx512::{Avx512, NEAREST, VALUE_OF_NIBBLE, nibbles};
use super::{f16_maxima, native_f16};

// SAFETY of every block: the instructions are enabled, and pointers are valid for what is read or written (see Simd).
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl<const NATIVE_F16: bool> Groups for Avx512<NATIVE_F16> {
    const NATIVE_F16: bool = NATIVE_F16;

    #[inline(always)]
    unsafe fn permute_maxima<const GROUP: usize>(maxima: __m512) -> __m512 {
        unsafe {
            let lanes = const { maximum_lanes::<16>(GROUP) };
            _mm512_permutexvar_ps(_mm512_loadu_si512(lanes.as_ptr().cast()), maxima)
        }
    }

    #[inline(always)]
    unsafe fn broadcast_scales<const GROUP: usize>(scales: __m512, k: usize) -> __m512 {
        unsafe {
            let lanes = &const { all_scale_lanes::<16>(GROUP) }[k];
            _mm512_permutexvar_ps(_mm512_loadu_si512(lanes.as_ptr().cast()), scales)
        }
    }

    #[inline(always)]
    unsafe fn broadcast_numbers<const GROUP: usize>(numbers: *const f32) -> __m512 {
        unsafe {
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
    }

    #[inline(always)]
    unsafe fn maxima_f16<const GROUP: usize>(values: *const f16, count: usize, unit: usize) -> __m512 {
        unsafe {
            if GROUP < 8 {
                return maxima_in_registers::<Self, f16, GROUP>(values, count, unit);
            }
            _mm512_cvtph_ps(f16_maxima::maxima::<GROUP>(values, count, unit))
        }
    }

    /// A group has no more than sixteen different values: they are made once and looked up.
    #[inline(always)]
    unsafe fn decode_group_i4<V: FloatLanes, T: FloatLanes, const STREAM: bool>(
        cache: *const u8,
        values: *mut V,
        s: __m512,
        len: usize,
    ) {
        unsafe {
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
        }
    }

    #[inline(always)]
    unsafe fn dequantize_native<Q: Codes, V: FloatLanes, const GROUP: usize, const STREAM: bool>(
        cache: *const u8,
        scales: *const f16,
        values: *mut V,
        len: usize,
        group: usize,
    ) -> bool {
        NATIVE_F16 && unsafe { native_f16::dequantize::<Q, V, GROUP, STREAM>(cache, scales, values, len, group) }
    }

    #[inline(always)]
    unsafe fn encode_native<Q: Codes, const GROUP: usize>(
        values: *const f16,
        scales: *const f32,
        cache: *mut u8,
        group: usize,
        groups: usize,
        ahead: Option<*const f16>,
    ) {
        unsafe { native_f16::encode::<Q, GROUP>(values, scales, cache, group, groups, ahead) }
    }
}
