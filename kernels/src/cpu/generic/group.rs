//! Groups of values that share a scale, over vector registers: their maxima, their scales, their codes.

use kvcache_schema::QuantBit;
use kvcache_simd::{Float, MOST_LANES, Simd};

use super::super::code_type::CodeType;
use super::lane_tables::registers_per_scales;
use super::quant_simd::{QuantSimd, last_inside};

/// Reads a register of codes.
///
/// # Safety
/// The conditions are those of [`Simd`].
#[inline(always)]
unsafe fn read_codes<S: QuantSimd, Q: CodeType>(from: *const u8) -> S::F32 {
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
/// The conditions are those of [`Simd`].
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
/// The conditions are those of [`Simd`].
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
/// The conditions are those of [`Simd`].
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
            decode::<S, Q, V, T, STREAM>(cache.add(Q::bytes(i)), values.add(i), s);
            decode::<S, Q, V, T, STREAM>(cache.add(Q::bytes(i + S::LANES)), values.add(i + S::LANES), s);
            i += 2 * S::LANES;
        }
        while i < len {
            let at = last_inside::<S>(i, len);
            decode::<S, Q, V, T, STREAM>(cache.add(Q::bytes(at)), values.add(at), s);
            i += S::LANES;
        }
    }
}

/// Dequantizes a register, where `s` is the scale of each lane.
///
/// # Safety
/// The conditions are those of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn decode<S: QuantSimd, Q: CodeType, V: Float, T: Float, const STREAM: bool>(
    cache: *const u8,
    values: *mut V,
    s: S::F32,
) {
    // SAFETY: a register of codes can be read, and of values be written: this function's condition.
    unsafe { V::write::<S, STREAM>(values, product::<S, V, T>(read_codes::<S, Q>(cache), s)) }
}

/// `code * s`, rounded to T, unless writing it as V rounds it to the same type.
///
/// # Safety
/// The conditions are those of [`Simd`].
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
/// others' are 0.
///
/// # Safety
/// The instruction set is enabled; `count` units can be read.
#[inline(always)]
pub(crate) unsafe fn maxima_in_registers<S: QuantSimd, V: Float, const GROUP: usize>(
    values: *const V,
    count: usize,
    unit: usize,
) -> S::F32 {
    let units = registers_per_scales(S::LANES, GROUP);
    // SAFETY: k < count, and every register lies inside its unit: i < unit, and last_inside keeps the last one there.
    unsafe {
        let mut left = units;
        let mut registers = [S::splat(0.0); MOST_LANES];
        for (k, register) in registers.iter_mut().enumerate().take(count) {
            let values = values.add(k * unit);
            *register = S::abs(V::read::<S>(values));
            let mut i = S::LANES;
            while GROUP > S::LANES && i < unit {
                let at = last_inside::<S>(i, unit);
                *register = S::max_magnitude(*register, S::abs(V::read::<S>(values.add(at))));
                i += S::LANES;
            }
        }
        while left > 1 {
            left /= 2;
            for i in 0..left {
                let [a, b] = [registers[2 * i], registers[2 * i + 1]];
                // Four lanes become one in two steps.
                registers[i] = if left >= units / 4 { S::max_pairs(a, b) } else { S::max_fours(a, b) };
            }
        }
        S::permute_maxima::<GROUP>(registers[0])
    }
}

/// The largest magnitudes of a register of groups, as [`maxima_in_registers`] orders them, the fastest way.
///
/// # Safety
/// The conditions are those of [`maxima_in_registers`].
#[inline(always)]
pub(crate) unsafe fn maxima<S: QuantSimd, V: Float, const GROUP: usize>(
    values: *const V,
    count: usize,
    unit: usize,
) -> S::F32 {
    // SAFETY: see `# Safety`; V is float16 where that is checked.
    unsafe {
        if V::IS_F16
            && let Some(maxima) = S::maxima_f16::<GROUP>(values.cast(), count, unit)
        {
            return maxima;
        }
        maxima_in_registers::<S, V, GROUP>(values, count, unit)
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
/// The conditions are those of [`Simd`].
#[inline(always)]
unsafe fn divide<S: QuantSimd>(x: S::F32, s: S::F32, reciprocal: S::F32) -> S::F32 {
    // SAFETY: the instruction set is enabled.
    unsafe {
        let quotient = S::mul(x, reciprocal);
        let remainder = S::mul_sub_from(quotient, s, x);
        S::mul_add(remainder, reciprocal, quotient)
    }
}

/// `amax / qmax` as the reference rounds it, to V.
///
/// Two float16 have no quotient within one part in 2^23 of a point halfway between two others, so the product with the
/// rounded reciprocal, which is no further off than that, lies on the quotient's side of it.
/// `tests/kernels/every_float16.rs` goes through all pairs.
///
/// # Safety
/// The conditions are those of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn scale<S: QuantSimd, Q: CodeType, V: Float>(amax: S::F32) -> S::F32 {
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
/// The conditions are those of [`Simd`].
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
/// For float16, Veltkamp's splitting rounds the product with the rounded reciprocal (see [`scale`]) to eleven bits. The
/// large product need not be that of the quotient, only have no bits below those of the difference.
///
/// A quotient is less than `qmax` + 1/2, and its code at most `qmax`, but of a type with as few digits as a code: with
/// eight of both it can be 127.5.
///
/// # Safety
/// The conditions are those of [`Simd`].
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
