//! Floats and codes in the registers of any instruction set.
//!
//! SAFETY of every block: the function's own conditions are those of the one that it calls.
#![expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]

use half::f16;

use super::super::elements::{Codes, Float, Int4, Int8};
use super::simd::{MOST_LANES, Simd};

/// A float type in registers.
///
/// # Safety
/// As for [`Simd`], whose functions these choose from.
pub(crate) trait FloatLanes: Float {
    /// Whether writing rounds to float16.
    const IS_F16: bool;
    unsafe fn read<S: Simd>(from: *const Self) -> S::F32;
    unsafe fn write<S: Simd, const STREAM: bool>(to: *mut Self, x: S::F32);
    unsafe fn round_to<S: Simd>(x: S::F32) -> S::F32;
    unsafe fn read_some<S: Simd>(from: *const Self, n: usize) -> S::F32;

    /// `len` values as float32: where they are, or else in `room`, into which whole registers are written.
    unsafe fn as_f32<S: Simd>(values: *const Self, len: usize, room: *mut f32) -> *const f32;

    /// Writes the first `n <= LANES` lanes. Not with a mask, which takes very long on some processors (Zen 5).
    #[inline(always)]
    unsafe fn write_some<S: Simd>(to: *mut Self, x: S::F32, n: usize) {
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

/// Codes in registers.
///
/// # Safety
/// As for [`Simd`], whose functions these choose from.
pub(crate) trait CodeLanes: Codes {
    /// Reads a register of codes.
    unsafe fn read<S: Simd>(from: *const u8) -> S::F32;
    /// Writes a register of codes.
    unsafe fn write<S: Simd>(to: *mut u8, codes: S::Code);
    /// Writes two registers of codes.
    unsafe fn write_two<S: Simd>(to: *mut u8, codes: [S::Code; 2]);
}

impl FloatLanes for f32 {
    const IS_F16: bool = false;

    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const Self) -> S::F32 {
        unsafe { S::read_f32(from) }
    }

    #[inline(always)]
    unsafe fn write<S: Simd, const STREAM: bool>(to: *mut Self, x: S::F32) {
        unsafe { S::write_f32::<STREAM>(to, x) }
    }

    #[inline(always)]
    unsafe fn round_to<S: Simd>(x: S::F32) -> S::F32 {
        x
    }

    #[inline(always)]
    unsafe fn read_some<S: Simd>(from: *const Self, n: usize) -> S::F32 {
        unsafe { S::read_some_f32(from, n) }
    }

    #[inline(always)]
    unsafe fn as_f32<S: Simd>(values: *const Self, _: usize, _: *mut f32) -> *const f32 {
        values
    }
}

impl FloatLanes for f16 {
    const IS_F16: bool = true;

    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const Self) -> S::F32 {
        unsafe { S::read_f16(from) }
    }

    #[inline(always)]
    unsafe fn write<S: Simd, const STREAM: bool>(to: *mut Self, x: S::F32) {
        unsafe { S::write_f16::<STREAM>(to, x) }
    }

    #[inline(always)]
    unsafe fn round_to<S: Simd>(x: S::F32) -> S::F32 {
        unsafe { S::round_f16(x) }
    }

    #[inline(always)]
    unsafe fn read_some<S: Simd>(from: *const Self, n: usize) -> S::F32 {
        unsafe { S::read_some_f16(from, n) }
    }

    #[inline(always)]
    unsafe fn as_f32<S: Simd>(values: *const Self, len: usize, room: *mut f32) -> *const f32 {
        unsafe {
            for i in (0..len).step_by(S::LANES) {
                let some = Self::read_some::<S>(values.add(i), S::LANES.min(len - i));
                S::write_f32::<false>(room.add(i), some);
            }
        }
        room
    }
}

impl CodeLanes for Int8 {
    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const u8) -> S::F32 {
        unsafe { S::read_i8(from) }
    }

    #[inline(always)]
    unsafe fn write<S: Simd>(to: *mut u8, codes: S::Code) {
        unsafe { S::write_i8(to, codes) }
    }

    #[inline(always)]
    unsafe fn write_two<S: Simd>(to: *mut u8, codes: [S::Code; 2]) {
        unsafe { S::write_two_i8(to, codes) }
    }
}

impl CodeLanes for Int4 {
    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const u8) -> S::F32 {
        unsafe { S::read_i4(from) }
    }

    #[inline(always)]
    unsafe fn write<S: Simd>(to: *mut u8, codes: S::Code) {
        unsafe { S::write_i4(to, codes) }
    }

    #[inline(always)]
    unsafe fn write_two<S: Simd>(to: *mut u8, codes: [S::Code; 2]) {
        unsafe { S::write_two_i4(to, codes) }
    }
}
