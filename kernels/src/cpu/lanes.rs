//! Floats and codes in registers of any instruction set.

use half::f16;

use super::dequantize::decode_group;
use super::portable::{Codes, Eight, Float, Four};
use super::quantize::maxima_of_registers;
use super::simd::{MOST_LANES, Simd};

/// A float type in registers.
///
/// # Safety
/// As for [`Simd`], whose functions these choose from.
pub(super) trait Lanes: Float {
    /// Whether writing rounds to float16.
    const HALF: bool;
    unsafe fn read<S: Simd>(from: *const Self) -> S::F32;
    unsafe fn write<S: Simd, const STREAM: bool>(to: *mut Self, x: S::F32);
    unsafe fn round_to<S: Simd>(x: S::F32) -> S::F32;
    unsafe fn read_some<S: Simd>(from: *const Self, n: usize) -> S::F32;

    /// `len` values as float32: where they are, or else in `room`, into which whole registers are written.
    unsafe fn as_f32<S: Simd>(values: *const Self, len: usize, room: *mut f32) -> *const f32;

    /// As [`maxima_of_registers`].
    unsafe fn maxima<S: Simd, const GROUP: usize>(values: *const Self, count: usize, unit: usize) -> S::F32;

    /// `amax / qmax` as the reference rounds it.
    unsafe fn scale<S: Simd, Q: Codes>(amax: S::F32) -> S::F32;

    /// What [`quotient`](Self::quotient) makes a quotient by `s` of, where `reciprocal` is `1 / s` in float32.
    unsafe fn factors<S: Simd>(s: S::F32, reciprocal: S::F32) -> [S::F32; 2];

    /// `x / s` as the reference rounds it, with the factors of `s`, if the quotient is at most 128; any number below 1/4 where
    /// it is below that, NaN where it is NaN.
    unsafe fn quotient<S: Simd>(x: S::F32, factors: [S::F32; 2]) -> S::F32;

    /// Writes the first `n <= LANES` lanes. Not with a mask: some processors take very long for that.
    #[inline(always)]
    unsafe fn write_some<S: Simd>(to: *mut Self, x: S::F32, n: usize) {
        // SAFETY: the caller's promise; no register is longer than `all`.
        unsafe {
            if n == S::LANES {
                return Self::write::<S, false>(to, x);
            }
            let mut all = [Self::round(0.0); MOST_LANES];
            Self::write::<S, false>(all.as_mut_ptr(), x);
            for (i, &lane) in all.iter().enumerate().take(n) {
                to.add(i).write(lane);
            }
        }
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
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn divide<S: Simd>(x: S::F32, s: S::F32, reciprocal: S::F32) -> S::F32 {
    // SAFETY: the caller's promise that the instruction set is enabled.
    unsafe {
        let quotient = S::mul(x, reciprocal);
        let remainder = S::mul_sub_from(quotient, s, x);
        S::mul_add(remainder, reciprocal, quotient)
    }
}

/// Codes in registers.
///
/// # Safety
/// As for [`Simd`], whose functions these choose from.
pub(super) trait PackedLanes: Codes {
    /// Dequantizes a group of `len >= LANES`, where `s` is its scale in every lane.
    unsafe fn decode_group<S: Simd, V: Lanes, T: Lanes, const STREAM: bool>(
        cache: *const u8,
        values: *mut V,
        s: S::F32,
        len: usize,
    );
    /// Reads a register of codes.
    unsafe fn read<S: Simd>(from: *const u8) -> S::F32;
    /// Writes a register of codes.
    unsafe fn write<S: Simd>(to: *mut u8, codes: S::Code);
    /// Writes two registers of codes.
    unsafe fn write_two<S: Simd>(to: *mut u8, codes: [S::Code; 2]);
}

impl Lanes for f32 {
    const HALF: bool = false;

    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const Self) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { S::read_f32(from) }
    }

    #[inline(always)]
    unsafe fn write<S: Simd, const STREAM: bool>(to: *mut Self, x: S::F32) {
        // SAFETY: the caller's promise.
        unsafe { S::write_f32::<STREAM>(to, x) }
    }

    #[inline(always)]
    unsafe fn round_to<S: Simd>(x: S::F32) -> S::F32 {
        x
    }

    #[inline(always)]
    unsafe fn as_f32<S: Simd>(values: *const Self, _: usize, _: *mut f32) -> *const f32 {
        values
    }

    #[inline(always)]
    unsafe fn read_some<S: Simd>(from: *const Self, n: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { S::read_some_f32(from, n) }
    }

    #[inline(always)]
    unsafe fn maxima<S: Simd, const GROUP: usize>(values: *const Self, count: usize, unit: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { maxima_of_registers::<S, f32, GROUP>(values, count, unit) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd, Q: Codes>(amax: S::F32) -> S::F32 {
        let qmax = f32::from(Q::BITS.qmax());
        // SAFETY: the caller's promise that the instruction set is enabled.
        unsafe {
            let reciprocal = S::splat(1.0 / qmax);
            S::number_or(divide::<S>(amax, S::splat(qmax), reciprocal), S::mul(amax, reciprocal))
        }
    }

    #[inline(always)]
    unsafe fn factors<S: Simd>(s: S::F32, reciprocal: S::F32) -> [S::F32; 2] {
        [s, reciprocal]
    }

    #[inline(always)]
    unsafe fn quotient<S: Simd>(x: S::F32, [s, reciprocal]: [S::F32; 2]) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { divide::<S>(x, s, reciprocal) }
    }
}

impl Lanes for f16 {
    const HALF: bool = true;

    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const Self) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { S::read_f16(from) }
    }

    #[inline(always)]
    unsafe fn write<S: Simd, const STREAM: bool>(to: *mut Self, x: S::F32) {
        // SAFETY: the caller's promise.
        unsafe { S::write_f16::<STREAM>(to, x) }
    }

    #[inline(always)]
    unsafe fn round_to<S: Simd>(x: S::F32) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { S::round_f16(x) }
    }

    #[inline(always)]
    unsafe fn as_f32<S: Simd>(values: *const Self, len: usize, room: *mut f32) -> *const f32 {
        // SAFETY: the caller's promise.
        unsafe {
            for i in (0..len).step_by(S::LANES) {
                let some = Self::read_some::<S>(values.add(i), S::LANES.min(len - i));
                S::write_f32::<false>(room.add(i), some);
            }
        }
        room
    }

    #[inline(always)]
    unsafe fn read_some<S: Simd>(from: *const Self, n: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { S::read_some_f16(from, n) }
    }

    #[inline(always)]
    unsafe fn maxima<S: Simd, const GROUP: usize>(values: *const Self, count: usize, unit: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { S::maxima_f16::<GROUP>(values, count, unit) }
    }

    /// Two float16 have no quotient within one part in 2^23 of a point halfway between two others, so the product with the
    /// rounded reciprocal, which is no further off than that, lies on the quotient's side of it.
    /// `tests/every_float16_quotient.rs` goes through all pairs.
    #[inline(always)]
    unsafe fn scale<S: Simd, Q: Codes>(amax: S::F32) -> S::F32 {
        // SAFETY: the caller's promise that the instruction set is enabled.
        unsafe { S::round_f16(S::mul(amax, S::splat(1.0 / f32::from(Q::BITS.qmax())))) }
    }

    #[inline(always)]
    unsafe fn factors<S: Simd>(_: S::F32, reciprocal: S::F32) -> [S::F32; 2] {
        // SAFETY: the caller's promise that the instruction set is enabled.
        unsafe { [reciprocal, S::mul(reciprocal, S::splat((1 << 13 | 1) as f32))] }
    }

    /// As in `scale`; Veltkamp's splitting rounds to float16's eleven bits. The large product need not be that of the
    /// quotient, only have no bits below those of the difference.
    #[inline(always)]
    unsafe fn quotient<S: Simd>(x: S::F32, [reciprocal, large]: [S::F32; 2]) -> S::F32 {
        // SAFETY: the caller's promise that the instruction set is enabled.
        unsafe {
            let large = S::mul(x, large);
            S::sub(large, S::mul_sub_from(x, reciprocal, large))
        }
    }
}

impl PackedLanes for Eight {
    #[inline(always)]
    unsafe fn decode_group<S: Simd, V: Lanes, T: Lanes, const STREAM: bool>(
        cache: *const u8,
        values: *mut V,
        s: S::F32,
        len: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { decode_group::<S, Eight, V, T, STREAM>(cache, values, s, len) }
    }

    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const u8) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { S::read_i8(from) }
    }

    #[inline(always)]
    unsafe fn write<S: Simd>(to: *mut u8, codes: S::Code) {
        // SAFETY: the caller's promise.
        unsafe { S::write_i8(to, codes) }
    }

    #[inline(always)]
    unsafe fn write_two<S: Simd>(to: *mut u8, codes: [S::Code; 2]) {
        // SAFETY: the caller's promise.
        unsafe { S::write_two_i8(to, codes) }
    }
}

impl PackedLanes for Four {
    #[inline(always)]
    unsafe fn decode_group<S: Simd, V: Lanes, T: Lanes, const STREAM: bool>(
        cache: *const u8,
        values: *mut V,
        s: S::F32,
        len: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { S::decode_group_i4::<V, T, STREAM>(cache, values, s, len) }
    }

    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const u8) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { S::read_i4(from) }
    }

    #[inline(always)]
    unsafe fn write<S: Simd>(to: *mut u8, codes: S::Code) {
        // SAFETY: the caller's promise.
        unsafe { S::write_i4(to, codes) }
    }

    #[inline(always)]
    unsafe fn write_two<S: Simd>(to: *mut u8, codes: [S::Code; 2]) {
        // SAFETY: the caller's promise.
        unsafe { S::write_two_i4(to, codes) }
    }
}
