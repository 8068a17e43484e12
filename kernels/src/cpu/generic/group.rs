//! What an instruction set can do with groups: their maxima, and one scale for each.
//!
//! Functions take the length of a group as a constant, `GROUP`, where it is a common one.

use half::f16;

use super::super::elements::{Codes, Int4, Int8};
use super::lane_tables::registers_per_scales;
use super::lanes::{CodeLanes, FloatLanes};
use super::simd::{MOST_LANES, Simd, last_inside};

/// The `GROUP` of functions for groups of a register or more whose length only the call knows.
pub(crate) const LONG: usize = usize::MAX;

/// The `GROUP` of functions for groups that are left to plain Rust: shorter than a register and no divisor of it.
pub(crate) const ODD: usize = usize::MAX - 1;

/// Values in a register of native float16 arithmetic.
pub(crate) const NATIVE_LANES: usize = 32;

/// Groups that are quantized together, at most.
pub(crate) const MOST_GROUPS: usize = 256;

/// An instruction set's operations on groups.
///
/// # Safety
/// As for [`Simd`].
pub(crate) trait Groups: Simd {
    /// Whether the instruction set has native float16 arithmetic.
    const NATIVE_F16: bool = false;

    /// Puts a register of maxima in the order of their groups: what as many registers as [`registers_per_scales`] says
    /// became by [`max_pairs`](Simd::max_pairs), twice, and [`max_fours`](Simd::max_fours).
    unsafe fn permute_maxima<const GROUP: usize>(maxima: Self::F32) -> Self::F32;

    /// Of register `k` of values, the scale of each lane, where `scales` are those of as many registers as
    /// [`registers_per_scales`] says.
    unsafe fn broadcast_scales<const GROUP: usize>(scales: Self::F32, k: usize) -> Self::F32;

    /// Of a register of values whose groups have these numbers, at the address, the number of each lane.
    unsafe fn broadcast_numbers<const GROUP: usize>(numbers: *const f32) -> Self::F32;

    /// As [`maxima_in_registers`], of float16.
    #[inline(always)]
    unsafe fn maxima_f16<const GROUP: usize>(values: *const f16, count: usize, unit: usize) -> Self::F32
    where
        Self: Sized,
    {
        // SAFETY: the same conditions.
        unsafe { maxima_in_registers::<Self, f16, GROUP>(values, count, unit) }
    }

    /// As [`decode_group`], of int4.
    #[inline(always)]
    unsafe fn decode_group_i4<V: FloatLanes, T: FloatLanes, const STREAM: bool>(
        cache: *const u8,
        values: *mut V,
        s: Self::F32,
        len: usize,
    ) where
        Self: Sized,
    {
        // SAFETY: the same conditions.
        unsafe { decode_group::<Self, Int4, V, T, STREAM>(cache, values, s, len) }
    }

    /// Dequantizes a row with float16 scales by native float16 arithmetic; false, with nothing done, where the
    /// instruction set has none or the row does not suit it.
    ///
    /// The bits are those of float32 arithmetic rounded to float16: codes are exact in float16, which leaves one
    /// rounding.
    #[inline(always)]
    unsafe fn dequantize_native<Q: Codes, V: FloatLanes, const GROUP: usize, const STREAM: bool>(
        _cache: *const u8,
        _scales: *const f16,
        _values: *mut V,
        _len: usize,
        _group: usize,
    ) -> bool {
        false
    }

    /// Writes the codes of at most [`MOST_GROUPS`] groups with these scales, which are float16, by native float16
    /// arithmetic, and prefetches as many values at `ahead`. The groups are [`NATIVE_LANES`] values or more: together,
    /// and each of them if `GROUP` is [`LONG`]. At `scales` whole registers can be read.
    ///
    /// Called with [`NATIVE_F16`](Self::NATIVE_F16) alone.
    unsafe fn encode_native<Q: Codes, const GROUP: usize>(
        _values: *const f16,
        _scales: *const f32,
        _cache: *mut u8,
        _group: usize,
        _groups: usize,
        _ahead: Option<*const f16>,
    ) {
        unreachable!("without native float16 arithmetic nothing is encoded by it");
    }
}

/// Codes that are decoded group by group.
///
/// # Safety
/// As for [`Simd`].
pub(crate) trait GroupCodes: CodeLanes {
    /// Dequantizes a group of `len >= LANES`, where `s` is its scale in every lane.
    unsafe fn decode_group<S: Groups, V: FloatLanes, T: FloatLanes, const STREAM: bool>(
        cache: *const u8,
        values: *mut V,
        s: S::F32,
        len: usize,
    );
}

impl GroupCodes for Int8 {
    #[inline(always)]
    unsafe fn decode_group<S: Groups, V: FloatLanes, T: FloatLanes, const STREAM: bool>(
        cache: *const u8,
        values: *mut V,
        s: S::F32,
        len: usize,
    ) {
        // SAFETY: the same conditions.
        unsafe { decode_group::<S, Int8, V, T, STREAM>(cache, values, s, len) }
    }
}

impl GroupCodes for Int4 {
    #[inline(always)]
    unsafe fn decode_group<S: Groups, V: FloatLanes, T: FloatLanes, const STREAM: bool>(
        cache: *const u8,
        values: *mut V,
        s: S::F32,
        len: usize,
    ) {
        // SAFETY: the same conditions.
        unsafe { S::decode_group_i4::<V, T, STREAM>(cache, values, s, len) }
    }
}

/// Dequantizes a group of `len >= LANES`, where `s` is its scale in every lane.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn decode_group<S: Simd, Q: CodeLanes, V: FloatLanes, T: FloatLanes, const STREAM: bool>(
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
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn decode<S: Simd, Q: CodeLanes, V: FloatLanes, T: FloatLanes, const STREAM: bool>(
    cache: *const u8,
    values: *mut V,
    s: S::F32,
) {
    // SAFETY: the same conditions.
    unsafe { V::write::<S, STREAM>(values, product::<S, V, T>(Q::read::<S>(cache), s)) }
}

/// `code * s`, rounded to T where writing it as V does not round as much: to float16 anyway.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn product<S: Simd, V: FloatLanes, T: FloatLanes>(code: S::F32, s: S::F32) -> S::F32 {
    // SAFETY: the instruction set is enabled.
    unsafe {
        let x = S::mul(code, s);
        if V::IS_F16 { x } else { T::round_to::<S>(x) }
    }
}

/// The largest magnitudes of a register of groups, in order, by horizontal maxima of registers: of units of `unit`
/// values, which are groups of a register or more, or registers of smaller groups. If there are only `count`, the
/// others' are 0.
///
/// # Safety
/// As for [`Simd`], for `count` units.
#[inline(always)]
pub(crate) unsafe fn maxima_in_registers<S: Groups, V: FloatLanes, const GROUP: usize>(
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

/// Floats that are quantized group by group.
///
/// # Safety
/// As for [`Simd`].
pub(crate) trait GroupFloats: FloatLanes {
    /// As [`maxima_in_registers`].
    unsafe fn maxima<S: Groups, const GROUP: usize>(values: *const Self, count: usize, unit: usize) -> S::F32;

    /// `amax / qmax` as the reference rounds it.
    unsafe fn scale<S: Simd, Q: Codes>(amax: S::F32) -> S::F32;

    /// What [`quotient`](Self::quotient) makes a quotient by `s` of, where `reciprocal` is `1 / s` in float32.
    unsafe fn factors<S: Simd>(s: S::F32, reciprocal: S::F32) -> [S::F32; 2];

    /// `x / s` as the reference rounds it, with the factors of `s`, if the quotient is at most 128; any number below
    /// 1/4 where it is below that, NaN where it is NaN.
    unsafe fn quotient<S: Simd>(x: S::F32, factors: [S::F32; 2]) -> S::F32;
}

/// `x / s`, rounded as a division is, where `reciprocal` is `1 / s`, rounded as a division is; NaN where `x` or `s` is
/// not finite.
///
/// Markstein's theorem: a quotient that is off by no more than its last place is corrected by its remainder, which is
/// exact. Where the remainder underflows so does the quotient, to a code of 0 or a scale below the floor. (Markstein,
/// "Computation of elementary functions on the IBM RISC System/6000 processor", 1990, theorem 5.)
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn divide<S: Simd>(x: S::F32, s: S::F32, reciprocal: S::F32) -> S::F32 {
    // SAFETY: the instruction set is enabled.
    unsafe {
        let quotient = S::mul(x, reciprocal);
        let remainder = S::mul_sub_from(quotient, s, x);
        S::mul_add(remainder, reciprocal, quotient)
    }
}

impl GroupFloats for f32 {
    #[inline(always)]
    unsafe fn maxima<S: Groups, const GROUP: usize>(values: *const Self, count: usize, unit: usize) -> S::F32 {
        // SAFETY: the same conditions.
        unsafe { maxima_in_registers::<S, f32, GROUP>(values, count, unit) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd, Q: Codes>(amax: S::F32) -> S::F32 {
        let qmax = f32::from(Q::BITS.qmax());
        // SAFETY: the instruction set is enabled.
        unsafe {
            let reciprocal = S::splat(1.0 / qmax);
            S::blend_nan(divide::<S>(amax, S::splat(qmax), reciprocal), S::mul(amax, reciprocal))
        }
    }

    #[inline(always)]
    unsafe fn factors<S: Simd>(s: S::F32, reciprocal: S::F32) -> [S::F32; 2] {
        [s, reciprocal]
    }

    #[inline(always)]
    unsafe fn quotient<S: Simd>(x: S::F32, [s, reciprocal]: [S::F32; 2]) -> S::F32 {
        // SAFETY: the instruction set is enabled.
        unsafe { divide::<S>(x, s, reciprocal) }
    }
}

impl GroupFloats for f16 {
    #[inline(always)]
    unsafe fn maxima<S: Groups, const GROUP: usize>(values: *const Self, count: usize, unit: usize) -> S::F32 {
        // SAFETY: the same conditions.
        unsafe { S::maxima_f16::<GROUP>(values, count, unit) }
    }

    /// Two float16 have no quotient within one part in 2^23 of a point halfway between two others, so the product with
    /// the rounded reciprocal, which is no further off than that, lies on the quotient's side of it.
    /// `tests/every_float16_quotient.rs` goes through all pairs.
    #[inline(always)]
    unsafe fn scale<S: Simd, Q: Codes>(amax: S::F32) -> S::F32 {
        // SAFETY: the instruction set is enabled.
        unsafe { S::round_f16(S::mul(amax, S::splat(1.0 / f32::from(Q::BITS.qmax())))) }
    }

    #[inline(always)]
    unsafe fn factors<S: Simd>(_: S::F32, reciprocal: S::F32) -> [S::F32; 2] {
        // SAFETY: the instruction set is enabled.
        unsafe { [reciprocal, S::mul(reciprocal, S::splat((1 << 13 | 1) as f32))] }
    }

    /// As in `scale`; Veltkamp's splitting rounds to float16's eleven bits. The large product need not be that of the
    /// quotient, only have no bits below those of the difference.
    #[inline(always)]
    unsafe fn quotient<S: Simd>(x: S::F32, [reciprocal, large]: [S::F32; 2]) -> S::F32 {
        // SAFETY: the instruction set is enabled.
        unsafe {
            let large = S::mul(x, large);
            S::sub(large, S::mul_sub_from(x, reciprocal, large))
        }
    }
}
