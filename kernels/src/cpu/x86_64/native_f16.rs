//! Quantization and dequantization by native float16 arithmetic (AVX512-FP16): 32 values in a register.
// SAFETY of all that is unsafe here: the instructions are enabled, and pointers are valid for what is read or written
// (see Simd).
#![expect(unsafe_op_in_unsafe_fn, reason = "one reason for all, above")]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use half::f16;
use kvcache_schema::QuantBit;
use kvcache_simd::{Avx512, Float, prefetch_l2};

use super::super::code_type::CodeType;
use super::super::generic::quant_simd::{LONG, MOST_GROUPS, NATIVE_LANES};

/// Values in a register.
const LANES: usize = NATIVE_LANES;

/// The signed values of four bits, twice, as float16.
const VALUE_OF_NIBBLE: [u16; LANES] = {
    // 0 to 7, then -8 to -1.
    const VALUES: [u16; 16] = [
        0x0000, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700, 0xc800, 0xc700, 0xc600, 0xc500, 0xc400, 0xc200,
        0xc000, 0xbc00,
    ];
    let mut twice = [0; LANES];
    let mut i = 0;
    while i < LANES {
        twice[i] = VALUES[i % 16];
        i += 1;
    }
    twice
};

/// For each lane, the number of its group in the register.
const fn group_of_lane(group: usize) -> [u16; LANES] {
    let mut groups = [0; LANES];
    let mut i = 0;
    while i < LANES {
        groups[i] = (i / group) as u16;
        i += 1;
    }
    groups
}

/// Dequantizes a row, as
/// [`QuantSimd::dequantize_native`](super::super::generic::quant_simd::QuantSimd::dequantize_native) says.
///
/// # Safety
/// AVX-512 F, BW, VL and FP16 are enabled; `len` codes and the scales of their groups can be read, and as many values
/// be written, to whole lines with `STREAM`.
#[inline(always)]
pub(crate) unsafe fn dequantize<Q: CodeType, V: Float, const GROUP: usize, const STREAM: bool>(
    cache: *const u8,
    scales: *const f16,
    values: *mut V,
    len: usize,
    group: usize,
) -> bool {
    let group = if GROUP == LONG { group } else { GROUP };
    // SAFETY: i < len and at <= len - 32 in the first loop; i < group and at <= group - 32 in the second.
    if GROUP < LANES {
        if len < LANES {
            return false;
        }
        let mut i = 0;
        if len.is_multiple_of(LANES) {
            // Unrolled: what a loop takes for itself is much beside so few instructions.
            while i + 4 * LANES <= len {
                let mut at = i;
                while at < i + 4 * LANES {
                    let s = broadcast::<GROUP>(scales.add(at / GROUP));
                    write::<V, STREAM>(values.add(at), _mm512_mul_ph(codes::<Q>(cache.add(Q::bytes(at))), s));
                    at += LANES;
                }
                i += 4 * LANES;
            }
        }
        while i < len {
            // The last register may overlap the one before it; it begins with a group, as 32 and len are whole
            // groups.
            let at = i.min(len - LANES);
            let s = broadcast::<GROUP>(scales.add(at / GROUP));
            write::<V, STREAM>(values.add(at), _mm512_mul_ph(codes::<Q>(cache.add(Q::bytes(at))), s));
            i += LANES;
        }
        return true;
    }
    if group < LANES {
        return false;
    }
    for g in 0..len / group {
        let s = _mm512_castsi512_ph(_mm512_set1_epi16(scales.add(g).cast::<i16>().read()));
        let (cache, values) = (cache.add(Q::bytes(g * group)), values.add(g * group));
        let mut i = 0;
        while i < group {
            let at = i.min(group - LANES);
            write::<V, STREAM>(values.add(at), _mm512_mul_ph(codes::<Q>(cache.add(Q::bytes(at))), s));
            i += LANES;
        }
    }
    true
}

/// A register of codes.
#[inline(always)]
unsafe fn codes<Q: CodeType>(cache: *const u8) -> __m512h {
    // SAFETY: the instructions are enabled, and 32 codes are there.
    match Q::BITS {
        QuantBit::Float8 => unreachable!("no native arithmetic makes numbers of float8"),
        QuantBit::Eight => _mm512_cvtepi16_ph(_mm512_cvtepi8_epi16(_mm256_loadu_si256(cache.cast()))),
        QuantBit::Four => {
            // Each byte's nibbles become the low bits of two lanes, by a product with 1 and 2^12: a permutation
            // looks at five, and the table has each value twice.
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(cache.cast()));
            let nibbles = _mm512_madd_epi16(bytes, _mm512_set1_epi32(0x1001));
            let table = _mm512_loadu_si512(VALUE_OF_NIBBLE.as_ptr().cast());
            _mm512_castsi512_ph(_mm512_permutexvar_epi16(nibbles, table))
        }
    }
}

/// The scale of each lane, of groups shorter than a register.
#[inline(always)]
unsafe fn broadcast<const GROUP: usize>(scales: *const f16) -> __m512h {
    // SAFETY: the instructions are enabled, and 32 / GROUP scales are there.
    let some = match LANES / GROUP {
        32 => return _mm512_castsi512_ph(_mm512_loadu_si512(scales.cast())),
        16 => _mm512_castsi256_si512(_mm256_loadu_si256(scales.cast())),
        8 => _mm512_castsi128_si512(_mm_loadu_si128(scales.cast())),
        4 => _mm512_castsi128_si512(_mm_loadl_epi64(scales.cast())),
        _ => _mm512_castsi128_si512(_mm_cvtsi32_si128(scales.cast::<i32>().read_unaligned())),
    };
    let groups = const { group_of_lane(GROUP) };
    _mm512_castsi512_ph(_mm512_permutexvar_epi16(_mm512_loadu_si512(groups.as_ptr().cast()), some))
}

/// Writes a register of values.
#[inline(always)]
unsafe fn write<V: Float, const STREAM: bool>(to: *mut V, x: __m512h) {
    // SAFETY: the instructions are enabled, and 32 values are there, in whole lines with STREAM.
    if V::IS_F16 {
        let (to, x) = (to.cast::<__m512i>(), _mm512_castph_si512(x));
        if STREAM {
            _mm512_stream_si512(to, x)
        } else {
            _mm512_storeu_si512(to, x)
        }
        return;
    }
    let (low, high) = (_mm512_castph512_ph256(x), _mm512_extracti64x4_epi64::<1>(_mm512_castph_si512(x)));
    for (i, half) in [low, _mm256_castsi256_ph(high)].into_iter().enumerate() {
        V::write::<Avx512<true>, STREAM>(to.add(i * LANES / 2), _mm512_cvtxph_ps(half));
    }
}

/// The distance from `ahead` to the values that are prefetched: into the second-level cache, since the lines that the
/// first level can wait for at once are too few for this arithmetic (Emerald Rapids).
const L2_PREFETCH_DISTANCE: usize = 32 << 10;

/// What quotients by the scales of some groups are made of, in whole registers.
type Factors = [MaybeUninit<f16>; MOST_GROUPS + LANES];

/// Writes the codes of groups, as
/// [`QuantSimd::encode_native`](super::super::generic::quant_simd::QuantSimd::encode_native) says.
///
/// A quotient is `x * r` for the rounded reciprocal `r`, corrected by its remainder (Markstein's theorem). Values and
/// scale are brought to scales near 1 first, by a power of two: the remainder is then exact wherever the quotient is
/// 1/4 or more, and below that every code is 0. `tests/kernels/every_float16.rs` goes through all pairs.
///
/// # Safety
/// AVX-512 F, BW, VL and FP16 are enabled; the values and whole registers of scales can be read, and the codes be
/// written. There are at most [`MOST_GROUPS`] groups, of 32 values or more together, and each if `GROUP` is [`LONG`].
#[inline(always)]
pub(crate) unsafe fn encode<Q: CodeType, const GROUP: usize>(
    values: *const f16,
    scales: *const f32,
    cache: *mut u8,
    group: usize,
    groups: usize,
    ahead: Option<*const f16>,
) {
    let group = if GROUP == LONG { group } else { GROUP };
    let mut factors: [Factors; 3] = [[MaybeUninit::uninit(); MOST_GROUPS + LANES]; 3];
    let [a, b, c] = &mut factors;
    let [a, b, c] = [a.as_mut_ptr().cast::<f16>(), b.as_mut_ptr().cast::<f16>(), c.as_mut_ptr().cast::<f16>()];
    // SAFETY: g < groups <= MOST_GROUPS, and each array has a register more; i < len and at <= len - 32 in the second
    // loop; i < group and at <= group - 32 in the third.
    for g in (0..groups).step_by(16) {
        make_factors(_mm512_loadu_ps(scales.add(g)), [a.add(g), b.add(g), c.add(g)]);
    }
    if GROUP < LANES {
        let len = group * groups;
        let mut i = 0;
        while i < len {
            let at = i.min(len - LANES);
            let g = at / GROUP;
            let factors = [broadcast::<GROUP>(a.add(g)), broadcast::<GROUP>(b.add(g)), broadcast::<GROUP>(c.add(g))];
            encode_register::<Q>(values, factors, cache, at, ahead);
            i += LANES;
        }
        return;
    }
    for g in 0..groups {
        let splat = |factors: *mut f16| _mm512_castsi512_ph(_mm512_set1_epi16(factors.add(g).cast::<i16>().read()));
        let factors = [splat(a), splat(b), splat(c)];
        let mut i = 0;
        while i < group {
            encode_register::<Q>(values, factors, cache, g * group + i.min(group - LANES), ahead);
            i += LANES;
        }
    }
}

/// Writes, for 16 scales, a power of two that brings them near 1, the scales times that, and the reciprocals of these.
#[inline(always)]
unsafe fn make_factors(s: __m512, to: [*mut f16; 3]) {
    // SAFETY: the instructions are enabled, and the caller has room for 16 factors of each kind.
    // The power is a float16 too: the smallest scale, 168 * 2^-24, stays below 1.
    let exponent = _mm512_max_ps(_mm512_getexp_ps(s), _mm512_set1_ps(-15.0));
    let power = _mm512_scalef_ps(_mm512_set1_ps(1.0), _mm512_sub_ps(_mm512_setzero_ps(), exponent));
    let near = _mm512_mul_ps(s, power);
    let reciprocal = _mm512_div_ps(_mm512_set1_ps(1.0), near);
    for (i, x) in [power, near, reciprocal].into_iter().enumerate() {
        let x = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
        _mm256_storeu_si256(to[i].cast(), x);
    }
}

/// Writes the codes of a register of values, from value `at` on, and prefetches as many at `ahead`.
#[inline(always)]
unsafe fn encode_register<Q: CodeType>(
    values: *const f16,
    [power, s, reciprocal]: [__m512h; 3],
    cache: *mut u8,
    at: usize,
    ahead: Option<*const f16>,
) {
    // SAFETY: the instructions are enabled, and 32 values, and their codes, are there from `at` on.
    if let Some(ahead) = ahead {
        prefetch_l2(ahead.wrapping_add(at).cast::<u8>().wrapping_add(L2_PREFETCH_DISTANCE));
    }
    let x = _mm512_mul_ph(_mm512_castsi512_ph(_mm512_loadu_si512(values.add(at).cast())), power);
    let quotient = _mm512_mul_ph(x, reciprocal);
    let remainder = _mm512_fnmadd_ph(quotient, s, x);
    let codes = _mm512_cvtph_epi16(_mm512_fmadd_ph(remainder, reciprocal, quotient));
    let cache = cache.add(Q::bytes(at));
    match Q::BITS {
        QuantBit::Float8 => unreachable!("no native arithmetic makes codes of float8"),
        // NaN is the smallest int16, whose low byte is 0.
        QuantBit::Eight => _mm256_storeu_si256(cache.cast(), _mm512_cvtepi16_epi8(codes)),
        QuantBit::Four => {
            let codes = _mm512_min_epi16(codes, _mm512_set1_epi16(7));
            // Of each pair of lanes the low four bits of the first and of the second, in the low byte.
            let seconds = _mm512_srli_epi32::<12>(codes);
            let pairs = _mm512_ternarylogic_epi32::<CHOOSE>(_mm512_set1_epi32(0x0f), codes, seconds);
            _mm_storeu_si128(cache.cast(), _mm512_cvtepi32_epi8(pairs));
        }
    }
}

/// The truth table of "if a then b else c".
const CHOOSE: i32 = 0xca;
