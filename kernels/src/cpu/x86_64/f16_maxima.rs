//! The largest magnitudes of float16 groups by AVX-512: their bits, compared as integers.
// SAFETY of all that is unsafe here: the instructions are enabled, and pointers are valid for what is read or written
// (see Simd).
#![expect(unsafe_op_in_unsafe_fn, reason = "one reason for all, above")]

use std::arch::x86_64::*;

use half::f16;

/// The maxima that [`maxima_in_registers`](super::super::generic::group::maxima_in_registers) gives, for groups of 8 or
/// of 16 and more, as float16; `WITH_SIGN` the largest values, of whose ranks it gives. None where a value is NaN: the
/// bits of a signalling one are not in the order of the quiet ones that conversions make.
///
/// The largest value of a group is among its largest as integers with a sign and without.
///
/// # Safety
/// AVX-512 F, BW and VL are enabled; `count` units of `unit` values can be read.
#[inline(always)]
pub(crate) unsafe fn maxima<const GROUP: usize, const WITH_SIGN: bool>(
    values: *const f16,
    count: usize,
    unit: usize,
) -> Option<__m256i> {
    // SAFETY: k < count, and every register lies inside its unit (i < unit), or in two of them.
    let [mut unsigned, mut signed] = [[_mm512_setzero_si512(); 16]; 2];
    for k in 0..if GROUP < 16 { count.div_ceil(2) } else { count } {
        if GROUP < 16 {
            // Two units in each register.
            let values = values.add(2 * k * unit);
            let both = 2 * k + 1 < count;
            let x = if both { _mm512_loadu_si512(values.cast()) } else { _mm512_zextsi256_si512(sixteen(values)) };
            unsigned[k] = key::<WITH_SIGN>(x);
            signed[k] = unsigned[k];
            continue;
        }
        let values = values.add(k * unit);
        if unit >= 32 {
            unsigned[k] = key::<WITH_SIGN>(_mm512_loadu_si512(values.cast()));
            signed[k] = unsigned[k];
            let mut i = 32;
            while i < unit {
                let x = key::<WITH_SIGN>(_mm512_loadu_si512(values.add(i.min(unit - 32)).cast()));
                (unsigned[k], signed[k]) = (larger::<false>(unsigned[k], x), larger::<true>(signed[k], x));
                i += 32;
            }
        } else {
            let (low, high) = (sixteen(values), sixteen(values.add(unit - 16)));
            unsigned[k] = key::<WITH_SIGN>(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high));
            signed[k] = unsigned[k];
        }
    }
    let unsigned = horizontal_maxima::<GROUP, false>(unsigned);
    let all_but_sign = _mm256_set1_epi16(0x7fff);
    let magnitudes = _mm256_and_si256(unsigned, all_but_sign);
    if !WITH_SIGN {
        let is_nan = _mm256_cmpgt_epi16_mask(magnitudes, _mm256_set1_epi16(INFINITY));
        return (is_nan == 0).then_some(unsigned);
    }
    let signed = horizontal_maxima::<GROUP, true>(signed);
    let of_signed = _mm256_and_si256(signed, all_but_sign);
    let is_nan = _mm256_cmpgt_epi16_mask(_mm256_max_epi16(magnitudes, of_signed), _mm256_set1_epi16(INFINITY));
    let is_positive = _mm256_cmpgt_epi16_mask(of_signed, magnitudes);
    (is_nan == 0).then_some(_mm256_mask_mov_epi16(unsigned, is_positive, signed))
}

/// The bits of an infinite float16.
pub(super) const INFINITY: i16 = 0x7c00;

/// 32 halves `WITH_SIGN`, or their magnitudes.
#[inline(always)]
unsafe fn key<const WITH_SIGN: bool>(x: __m512i) -> __m512i {
    if WITH_SIGN { x } else { _mm512_and_si512(x, _mm512_set1_epi16(0x7fff)) }
}

/// The larger of both halves, as integers with a sign or without.
#[inline(always)]
unsafe fn larger<const SIGNED: bool>(a: __m512i, b: __m512i) -> __m512i {
    if SIGNED { _mm512_max_epi16(a, b) } else { _mm512_max_epu16(a, b) }
}

/// Where each group's maximum is, if four registers of four groups of eight halves have become one register.
const EIGHTS: [i16; 32] = {
    let mut lanes = [0; 32];
    let mut group = 0;
    while group < 16 {
        lanes[group] = (group % 4 * 8 + group / 4) as i16;
        group += 1;
    }
    lanes
};

/// Sixteen halves.
#[inline(always)]
unsafe fn sixteen(halves: *const f16) -> __m256i {
    // SAFETY: the instructions are enabled, and the pointer is valid for the halves.
    _mm256_loadu_si256(halves.cast())
}

/// The larger of each pair of neighboring fours of 32 bits, half by half, in the order of
/// [`QuantSimd::max_fours`](super::super::generic::quant_simd::QuantSimd::max_fours).
#[inline(always)]
unsafe fn larger_fours<const SIGNED: bool>(a: __m512i, b: __m512i) -> __m512i {
    let (firsts, seconds) = (_mm512_shuffle_i32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b));
    larger::<SIGNED>(firsts, seconds)
}

/// The maxima of 4 registers of groups of 8, or of 16 others, in one.
#[inline(always)]
unsafe fn horizontal_maxima<const GROUP: usize, const SIGNED: bool>(mut registers: [__m512i; 16]) -> __m256i {
    // SAFETY: the instructions are enabled, and EIGHTS is a register.
    // Neighbors become one: pairs of halves, then of fours, then of eights, of both registers.
    let mut left = if GROUP < 16 { 2 } else { 8 };
    for i in 0..left {
        let [a, b] = [registers[2 * i], registers[2 * i + 1]];
        registers[i] = larger::<SIGNED>(_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b));
    }
    left /= 2;
    for i in 0..left {
        let [a, b] = [registers[2 * i], registers[2 * i + 1]];
        registers[i] = larger::<SIGNED>(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    }
    if GROUP < 16 {
        let x = registers[0];
        let x = larger::<SIGNED>(x, _mm512_shuffle_epi32::<0b01_00_11_10>(x));
        let lanes = _mm512_loadu_si512(EIGHTS.as_ptr().cast());
        return _mm512_castsi512_si256(_mm512_permutexvar_epi16(lanes, x));
    }
    left /= 2;
    for i in 0..left {
        let [a, b] = [registers[2 * i], registers[2 * i + 1]];
        registers[i] = larger::<SIGNED>(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    let x = larger_fours::<SIGNED>(registers[0], registers[1]);
    _mm512_castsi512_si256(larger_fours::<SIGNED>(x, x))
}
