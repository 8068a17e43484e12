//! Groups of values that share a scale, over vector registers: their maxima, their scales, their codes.

use kvcache_schema::{QuantBit, SCALE_FLOOR};
use kvcache_simd::{Float, MOST_LANES, Simd};

use super::super::code_type::CodeType;
use super::lane_tables::registers_per_scales;
use super::quant_simd::{QuantSimd, last_inside};

/// Reads a register of codes.
///
/// # Safety
/// The conditions of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn read_codes<S: QuantSimd, Q: CodeType>(from: *const u8) -> S::F32 {
    // SAFETY: a register of codes can be read: this function's condition.
    unsafe {
        match Q::BITS {
            QuantBit::Eight => S::read_i8(from),
            QuantBit::Four => S::read_i4(from),
            QuantBit::Float8 => S::read_e4m3(from),
        }
    }
}

/// The codes of quotients of the values `x`.
///
/// # Safety
/// The instruction set is enabled.
#[inline(always)]
pub(crate) unsafe fn codes<S: QuantSimd, Q: CodeType>(quotient: S::F32, x: S::F32) -> S::Code {
    // SAFETY: the instruction set is enabled.
    unsafe {
        match Q::BITS {
            QuantBit::Eight | QuantBit::Four => S::codes(quotient),
            QuantBit::Float8 => S::e4m3_codes(quotient, x),
        }
    }
}

/// Writes a register of codes.
///
/// # Safety
/// The conditions of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn write_codes<S: QuantSimd, Q: CodeType>(to: *mut u8, codes: S::Code) {
    // SAFETY: a register of codes can be written: this function's condition.
    unsafe {
        match Q::BITS {
            QuantBit::Eight | QuantBit::Float8 => S::write_i8(to, codes),
            QuantBit::Four => S::write_i4(to, codes),
        }
    }
}

/// Writes two registers of codes.
///
/// # Safety
/// The conditions of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn write_two_codes<S: QuantSimd, Q: CodeType>(to: *mut u8, codes: [S::Code; 2]) {
    // SAFETY: two registers of codes can be written: this function's condition.
    unsafe {
        match Q::BITS {
            QuantBit::Eight | QuantBit::Float8 => S::write_two_i8(to, codes),
            QuantBit::Four => S::write_two_i4(to, codes),
        }
    }
}

/// Dequantizes a group of `len >= LANES`, where `s` is its scale in every lane.
///
/// # Safety
/// The conditions of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn decode_group<S: QuantSimd, Q: CodeType, V: Float, T: Float, const STREAM: bool>(
    cache: *const u8,
    values: *mut V,
    s: S::F32,
    len: usize,
) {
    // SAFETY: i < len, and i + 2 * LANES <= len in the first loop; last_inside keeps the last register inside the
    // group.
    unsafe {
        let mut i = 0;
        while i + 2 * S::LANES <= len {
            let a = product::<S, V, T>(read_codes::<S, Q>(cache.add(Q::bytes(i))), s);
            let b = product::<S, V, T>(read_codes::<S, Q>(cache.add(Q::bytes(i + S::LANES))), s);
            V::write_two::<S, STREAM>(values.add(i), [a, b]);
            i += 2 * S::LANES;
        }
        while i < len {
            let at = last_inside::<S>(i, len);
            let x = product::<S, V, T>(read_codes::<S, Q>(cache.add(Q::bytes(at))), s);
            V::write::<S, STREAM>(values.add(at), x);
            i += S::LANES;
        }
    }
}

/// `code * s`, rounded to T, unless writing it as V rounds it to the same type.
///
/// # Safety
/// The conditions of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn product<S: Simd, V: Float, T: Float>(code: S::F32, s: S::F32) -> S::F32 {
    // SAFETY: the instruction set is enabled.
    unsafe {
        let x = S::mul(code, s);
        if V::IS_F16 && T::IS_F16 { x } else { T::round::<S>(x) }
    }
}

/// The largest magnitudes of a register of groups, in order, by horizontal maxima of registers: of units of `unit`
/// values, which are groups of a register or more, or registers of smaller groups. If there are only `count`, the
/// others' are 0. `WITH_SIGN` gives the [ranks](QuantSimd::rank) of the largest values instead.
///
/// Where ranks take some instructions, two values of a group are enough: of the largest as integers with a sign
/// and without, which are the largest positive and the lowest negative number, if there are both.
///
/// # Safety
/// The instruction set is enabled; `count` units can be read.
#[inline(always)]
pub(crate) unsafe fn maxima_in_registers<S: QuantSimd, V: Float, const GROUP: usize, const WITH_SIGN: bool>(
    values: *const V,
    count: usize,
    unit: usize,
) -> S::F32 {
    let units = registers_per_scales(S::LANES, GROUP);
    let of_two = WITH_SIGN && !S::RANKS;
    // SAFETY: k < count, and every register lies inside its unit: i < unit, and last_inside keeps the last one there.
    unsafe {
        let key = |x| match (WITH_SIGN, of_two) {
            (false, _) => S::abs(x),
            (true, false) => S::rank(x),
            (true, true) => x,
        };
        let [mut unsigned, mut signed] = [[S::splat(0.0); MOST_LANES]; 2];
        for k in 0..count {
            let values = values.add(k * unit);
            unsigned[k] = key(V::read::<S>(values));
            signed[k] = unsigned[k];
            let mut i = S::LANES;
            while GROUP > S::LANES && i < unit {
                let x = key(V::read::<S>(values.add(last_inside::<S>(i, unit))));
                unsigned[k] = S::max_bits::<false>(unsigned[k], x);
                if of_two {
                    signed[k] = S::max_bits::<true>(signed[k], x);
                }
                i += S::LANES;
            }
        }
        let unsigned = S::permute_maxima::<GROUP>(horizontal_maxima::<S, false>(unsigned, units));
        if !of_two {
            return unsigned;
        }
        let signed = S::permute_maxima::<GROUP>(horizontal_maxima::<S, true>(signed, units));
        S::max_bits::<false>(S::rank(unsigned), S::rank(signed))
    }
}

/// The maxima of `units` registers, in one.
///
/// # Safety
/// The instruction set is enabled.
#[inline(always)]
unsafe fn horizontal_maxima<S: QuantSimd, const SIGNED: bool>(
    mut registers: [S::F32; MOST_LANES],
    units: usize,
) -> S::F32 {
    let mut left = units;
    while left > 1 {
        left /= 2;
        for i in 0..left {
            let [a, b] = [registers[2 * i], registers[2 * i + 1]];
            // Four lanes become one in two steps.
            // SAFETY: the instruction set is enabled.
            registers[i] =
                unsafe { if left >= units / 4 { S::max_pairs::<SIGNED>(a, b) } else { S::max_fours::<SIGNED>(a, b) } };
        }
    }
    registers[0]
}

/// The maxima of a register of groups that [`maxima_in_registers`] gives, the fastest way.
///
/// # Safety
/// The conditions of [`maxima_in_registers`].
#[inline(always)]
pub(crate) unsafe fn maxima<S: QuantSimd, V: Float, const GROUP: usize, const WITH_SIGN: bool>(
    values: *const V,
    count: usize,
    unit: usize,
) -> S::F32 {
    // SAFETY: see `# Safety`; V is float16 where that is checked.
    unsafe {
        if V::IS_F16
            && let Some(maxima) = S::maxima_f16::<GROUP, WITH_SIGN>(values.cast(), count, unit)
        {
            return maxima;
        }
        maxima_in_registers::<S, V, GROUP, WITH_SIGN>(values, count, unit)
    }
}

/// `x / s`, rounded as a division is, where `reciprocal` is `1 / s`, rounded as a division is; NaN where `x` or `s` is
/// not finite.
///
/// Markstein's theorem: a quotient that is off by no more than its last place is corrected by its remainder, which is
/// exact. Where the remainder underflows so does the quotient, to a code of 0 or a scale below the floor. (Markstein,
/// "Computation of elementary functions on the IBM RISC System/6000 processor", 1990, theorem 5.)
///
/// # Safety
/// The conditions of [`Simd`].
#[inline(always)]
unsafe fn divide<S: QuantSimd>(x: S::F32, s: S::F32, reciprocal: S::F32) -> S::F32 {
    // SAFETY: the instruction set is enabled.
    unsafe {
        let quotient = S::mul(x, reciprocal);
        let remainder = S::mul_sub_from(quotient, s, x);
        S::mul_add(remainder, reciprocal, quotient)
    }
}

/// The scale of a group as the reference rounds it, to V; `maximum` is its largest magnitude, or, where scales have
/// signs, the [rank](QuantSimd::rank) of its largest value.
///
/// # Safety
/// The conditions of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn scale<S: QuantSimd, Q: CodeType, V: Float>(maximum: S::F32) -> S::F32 {
    // SAFETY: the instruction set is enabled.
    unsafe {
        // NaN remains.
        let at_least_floor = |s| S::max(V::round::<S>(S::splat(SCALE_FLOOR)), s);
        if !Q::BITS.has_signed_scales() {
            return at_least_floor(quotient_of_maximum::<S, Q, V>(maximum));
        }
        let amax = S::shift_right::<1>(maximum);
        let eighth = const { 1.0 / QuantBit::Four.qmax() as f32 };
        let size = at_least_floor(V::round::<S>(S::mul(amax, S::splat(eighth))));
        // The other sign, which is the sign of an even rank, but for 0. A product with a NaN keeps its sign.
        let is_odd = S::and_bits(S::max_bits::<false>(maximum, S::splat_bits(1)), S::splat_bits(1));
        let sign = S::and_bits(S::add_bits(is_odd, S::splat_bits(u32::MAX)), S::splat(-0.0));
        S::mul(size, S::or_bits(S::splat(1.0), sign))
    }
}

/// `amax / qmax` as the reference rounds it, to V.
///
/// Two float16 have no quotient within one part in 2^23 of a point halfway between two others, so the product with the
/// rounded reciprocal, which is no further off than that, lies on the quotient's side of it.
/// `tests/kernels/every_float16.rs` goes through all pairs.
///
/// # Safety
/// The conditions of [`Simd`].
#[inline(always)]
unsafe fn quotient_of_maximum<S: QuantSimd, Q: CodeType, V: Float>(amax: S::F32) -> S::F32 {
    let qmax = f32::from(Q::BITS.qmax());
    // SAFETY: the instruction set is enabled.
    unsafe {
        let reciprocal = S::splat(1.0 / qmax);
        let product = S::mul(amax, reciprocal);
        if V::IS_F16 {
            return V::round::<S>(product);
        }
        let quotient = divide::<S>(amax, S::splat(qmax), reciprocal);
        // Where amax is not finite, the quotient is NaN.
        V::round::<S>(S::if_equal(quotient, quotient, quotient, product))
    }
}

/// What [`quotient`] makes a quotient by `s` of, where `reciprocal` is `1 / s` in float32.
///
/// # Safety
/// The conditions of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn factors<S: QuantSimd, V: Float>(s: S::F32, reciprocal: S::F32) -> [S::F32; 2] {
    // SAFETY: the instruction set is enabled.
    unsafe {
        if V::IS_F16 { [reciprocal, S::mul(reciprocal, S::splat((1 << 13 | 1) as f32))] } else { [s, reciprocal] }
    }
}

/// `x / s` as the reference rounds it, to V, with the [`factors`] of `s`, if the quotient is at most 464; any number
/// below 2^-14 where it is below that, NaN where it is NaN.
///
/// For float16, Veltkamp's splitting rounds the product with the rounded reciprocal (see [`quotient_of_maximum`]) to
/// eleven bits. The large product need not be the quotient's, only have no bits below the difference's.
///
/// A quotient is less than `qmax` + 1/2, and its code at most `qmax`, but of a type with as few digits as a code: with
/// eight of both it can be 127.5. The code 8 of four bits becomes 7 where it is written.
///
/// # Safety
/// The conditions of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn quotient<S: QuantSimd, Q: CodeType, V: Float>(x: S::F32, [a, b]: [S::F32; 2]) -> S::F32 {
    // SAFETY: the instruction set is enabled.
    unsafe {
        if V::IS_F16 {
            let large = S::mul(x, b);
            return S::sub(large, S::mul_sub_from(x, a, large));
        }
        let quotient = V::round::<S>(divide::<S>(x, a, b));
        if V::DIGITS > Q::BITS.code() as u32 {
            return quotient;
        }
        // What is NaN remains.
        let (least, minus) = (S::splat(-f32::from(Q::BITS.qmax())), S::splat(-1.0));
        S::mul(S::max(least, S::mul(S::max(least, quotient), minus)), minus)
    }
}
