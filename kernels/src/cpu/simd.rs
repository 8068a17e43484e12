//! Registers of an instruction set, and the types that are read into and written from them.

use half::f16;

use super::dequantize::decode_group;
use super::lanes::Lanes;
use super::portable::Four;
use super::quantize::maxima_of_registers;

/// The `GROUP` of functions for groups of a register or more of which only the call knows how long they are.
pub(super) const REGISTER: usize = usize::MAX;

/// The same for groups that are left to plain Rust.
pub(super) const OTHER: usize = usize::MAX - 1;

/// Lanes of the widest register.
pub(super) const MOST_LANES: usize = 16;

/// How many scales a register of values has.
pub(super) const fn scales_of_register<S: Simd, const GROUP: usize>() -> usize {
    if GROUP < S::LANES { S::LANES / GROUP } else { 1 }
}

/// How many registers of values have a register of scales.
pub(super) const fn units<S: Simd, const GROUP: usize>() -> usize {
    S::LANES / scales_of_register::<S, GROUP>()
}

/// For each lane of register `k` of values, the lane of its scale.
pub(super) const fn lane_of_scale<S: Simd, const LANES: usize, const GROUP: usize>(k: usize) -> [i32; LANES] {
    let mut lanes = [0; LANES];
    let mut i = 0;
    while i < LANES {
        lanes[i] = (k * scales_of_register::<S, GROUP>() + if GROUP < LANES { i / GROUP } else { 0 }) as i32;
        i += 1;
    }
    lanes
}

/// For each lane of a register of values, the number of its group among the register's.
pub(super) const fn group_of_lane<const LANES: usize, const GROUP: usize>() -> [i32; LANES] {
    let mut groups = [0; LANES];
    let mut i = 0;
    while i < LANES {
        groups[i] = (i / GROUP) as i32;
        i += 1;
    }
    groups
}

/// For each group whose maximum is in a register, its lane: see [`Simd::in_order`].
pub(super) const fn lane_of_group<const LANES: usize, const GROUP: usize>() -> [i32; LANES] {
    let mut lanes = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        let (four, i) = (lane / 4, lane % 4);
        let group = match GROUP {
            1 => lane,
            // One register's pairs in a half of each four.
            2 => i / 2 * (LANES / 2) + four * 2 + i % 2,
            // One register's fours in as many fours, of which some have become one.
            _ => {
                let fours = if GROUP < LANES { LANES / GROUP } else { 1 };
                (four / fours * 4 + i) * fours + four % fours
            }
        };
        lanes[group] = lane as i32;
        lane += 1;
    }
    lanes
}

/// An instruction set with registers of [`LANES`](Self::LANES) float32.
///
/// # Safety
/// Every function may be called only where the instruction set is enabled. Pointers need no alignment; they are valid for
/// as many elements as the function's description says; what is written with `STREAM`, past the caches, goes to an address that
/// is a multiple of its bytes.
pub(super) trait Simd {
    /// Float32 values in a register: 8 or 16.
    const LANES: usize;

    /// A register of float32.
    type F32: Copy;

    /// A register of codes, as int32.
    type Code: Copy;

    /// [`LINE`](super::prefetch::LINE) bytes in registers.
    type Line: Copy;

    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self::F32;
    /// Reads a register of float32.
    unsafe fn read_f32(from: *const f32) -> Self::F32;
    /// Writes a register of float32.
    unsafe fn write_f32<const STREAM: bool>(to: *mut f32, x: Self::F32);
    /// Reads a register of float16.
    unsafe fn read_f16(from: *const f16) -> Self::F32;
    /// Writes a register as float16, rounded to nearest, ties to even.
    unsafe fn write_f16<const STREAM: bool>(to: *mut f16, x: Self::F32);
    /// Rounds to float16, to nearest, ties to even.
    unsafe fn round_f16(x: Self::F32) -> Self::F32;
    /// Reads a register of int8, one a byte.
    unsafe fn read_i8(from: *const u8) -> Self::F32;
    /// Reads a register of int4, two a byte.
    unsafe fn read_i4(from: *const u8) -> Self::F32;

    /// `a * b`
    unsafe fn mul(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a - b`
    unsafe fn sub(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b`
    unsafe fn div(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b + c`, rounded once.
    unsafe fn mul_add(a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// `c - a * b`, rounded once.
    unsafe fn mul_sub_from(a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// `x` where it is a number, else `otherwise`.
    unsafe fn number_or(x: Self::F32, otherwise: Self::F32) -> Self::F32;
    /// `|x|`
    unsafe fn abs(x: Self::F32) -> Self::F32;
    /// The larger of two registers without signs, in the order in which a NaN is above infinity.
    unsafe fn max_magnitude(a: Self::F32, b: Self::F32) -> Self::F32;
    /// The larger of each pair of neighbors, in that order: of each four lanes, of `a`'s and then of `b`'s.
    unsafe fn max_pairs(a: Self::F32, b: Self::F32) -> Self::F32;
    /// The larger of each pair of neighboring fours, lane by lane, in that order: of `a`'s and then of `b`'s.
    unsafe fn max_fours(a: Self::F32, b: Self::F32) -> Self::F32;
    /// Puts a register of maxima in the order of their groups: what [`units::<GROUP>`](units) registers became by
    /// [`max_pairs`](Self::max_pairs), twice, and [`max_fours`](Self::max_fours).
    unsafe fn in_order<const GROUP: usize>(maxima: Self::F32) -> Self::F32;
    /// `x`, but at least `floor`; NaN where `x` is NaN.
    unsafe fn at_least(x: Self::F32, floor: Self::F32) -> Self::F32;
    /// Rounds to integers, ties to even.
    unsafe fn codes(x: Self::F32) -> Self::Code;
    /// Writes a register of codes as int8, one a byte; 0 for that of NaN.
    unsafe fn write_i8(to: *mut u8, codes: Self::Code);
    /// Writes a register of codes as int4, two a byte; 0 for that of NaN.
    unsafe fn write_i4(to: *mut u8, codes: Self::Code);
    /// As [`write_i8`](Self::write_i8), two registers.
    unsafe fn write_two_i8(to: *mut u8, codes: [Self::Code; 2]);
    /// As [`write_i4`](Self::write_i4), two registers.
    unsafe fn write_two_i4(to: *mut u8, codes: [Self::Code; 2]);

    /// Reads the first `n <= LANES` float32; the other lanes are 0.
    unsafe fn read_some_f32(from: *const f32, n: usize) -> Self::F32;
    /// Reads the first `n <= LANES` float16; the other lanes are 0.
    unsafe fn read_some_f16(from: *const f16, n: usize) -> Self::F32;
    /// Of register `k` of values, the scale of each lane, where `scales` are those of [`units::<GROUP>`](units) registers.
    unsafe fn spread<const GROUP: usize>(scales: Self::F32, k: usize) -> Self::F32;
    /// Of a register of values whose groups have these numbers, the number of each lane.
    unsafe fn spread_of<const GROUP: usize>(numbers: *const f32) -> Self::F32;

    /// As [`maxima_of_registers`].
    #[inline(always)]
    unsafe fn maxima_f16<const GROUP: usize>(values: *const f16, count: usize, unit: usize) -> Self::F32
    where
        Self: Sized,
    {
        // SAFETY: the caller's promise.
        unsafe { maxima_of_registers::<Self, f16, GROUP>(values, count, unit) }
    }

    /// Dequantizes a group of `len >= LANES` int4, where `s` is its scale in every lane.
    #[inline(always)]
    unsafe fn decode_group_i4<V: Lanes, T: Lanes, const STREAM: bool>(
        cache: *const u8,
        values: *mut V,
        s: Self::F32,
        len: usize,
    ) where
        Self: Sized,
    {
        // SAFETY: the caller's promise.
        unsafe { decode_group::<Self, Four, V, T, STREAM>(cache, values, s, len) }
    }

    /// Reads a line.
    unsafe fn read_line(from: *const u8) -> Self::Line;
    /// Writes a line.
    unsafe fn write_line(to: *mut u8, line: Self::Line);
    /// Writes a line to an address that is a multiple of its bytes, past the caches.
    unsafe fn stream_line(to: *mut u8, line: Self::Line);
}

/// Where a register begins that is to begin at `i < len` and end inside `len >= LANES`: it may overlap the one before it.
#[inline(always)]
pub(super) fn last_inside<S: Simd>(i: usize, len: usize) -> usize {
    i.min(len - S::LANES)
}
