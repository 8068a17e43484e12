//! What an instruction set can do with a register.

use half::f16;

use super::prefetch::{LINE, prefetch_l1};

/// Lanes of the widest register.
pub(crate) const MOST_LANES: usize = 16;

/// Where a register begins that should begin at `i < len` and end inside `len >= LANES`: it may overlap the one before
/// it.
#[inline(always)]
pub(crate) fn last_inside<S: Simd>(i: usize, len: usize) -> usize {
    i.min(len - S::LANES)
}

/// An instruction set with registers of [`LANES`](Self::LANES) float32.
///
/// # Safety
/// Every function may be called only where the instruction set is enabled. Pointers need no alignment; they are valid
/// for as many elements as the function's description says. What is written with `STREAM`, by a non-temporal store,
/// goes to an address that is a multiple of its bytes.
pub(crate) trait Simd {
    /// Float32 values in a register: 8 or 16.
    const LANES: usize;

    /// A register of float32.
    type F32: Copy;

    /// A register of codes, as int32.
    type Code: Copy;

    /// A cache line, [`LINE`](super::prefetch::LINE) bytes, in registers.
    type Line: Copy;

    /// Prefetches the line at any address, readable or not, into the level of the cache that serves best.
    #[inline(always)]
    fn prefetch(line: *const u8) {
        prefetch_l1(line);
    }

    /// Prefetches `len` bytes at any address.
    #[inline(always)]
    fn prefetch_bytes(from: *const u8, len: usize) {
        for i in (0..len).step_by(LINE) {
            Self::prefetch(from.wrapping_add(i));
        }
    }

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
    unsafe fn blend_nan(x: Self::F32, otherwise: Self::F32) -> Self::F32;
    /// `|x|`
    unsafe fn abs(x: Self::F32) -> Self::F32;
    /// The larger of two registers without signs, in the order in which a NaN is above infinity.
    unsafe fn max_magnitude(a: Self::F32, b: Self::F32) -> Self::F32;
    /// The larger of each pair of neighboring lanes, in that order: of each four lanes, of `a`'s and then of `b`'s.
    unsafe fn max_pairs(a: Self::F32, b: Self::F32) -> Self::F32;
    /// The larger of each pair of neighboring fours, lane by lane, in that order: of `a`'s and then of `b`'s.
    unsafe fn max_fours(a: Self::F32, b: Self::F32) -> Self::F32;
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

    /// Reads a line.
    unsafe fn read_line(from: *const u8) -> Self::Line;
    /// Writes a line.
    unsafe fn write_line(to: *mut u8, line: Self::Line);
    /// Writes a line by a non-temporal store, to an address that is a multiple of its bytes.
    unsafe fn stream_line(to: *mut u8, line: Self::Line);
}
