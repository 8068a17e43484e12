//! Floats in the registers of any instruction set.
//!
//! SAFETY of every block: the function's own conditions are those of the one that it calls.
#![expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]

use half::f16;

use super::simd::{MOST_LANES, Simd};

/// A float type in registers.
///
/// # Safety
/// As for [`Simd`], whose functions these choose from.
pub(crate) trait Float: Copy {
    /// Reads a register.
    unsafe fn read<S: Simd>(from: *const Self) -> S::F32;
    /// Reads the first `n < LANES` elements; the other lanes are 0.
    unsafe fn read_some<S: Simd>(from: *const Self, n: usize) -> S::F32;
    /// Writes a register, rounded to nearest, ties to even.
    unsafe fn write<S: Simd>(to: *mut Self, x: S::F32);
    /// Writes the first `n < LANES` lanes.
    unsafe fn write_some<S: Simd>(to: *mut Self, x: S::F32, n: usize);
}

impl Float for f32 {
    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const Self) -> S::F32 {
        unsafe { S::read_f32(from) }
    }

    #[inline(always)]
    unsafe fn read_some<S: Simd>(from: *const Self, n: usize) -> S::F32 {
        unsafe { S::read_some_f32(from, n) }
    }

    #[inline(always)]
    unsafe fn write<S: Simd>(to: *mut Self, x: S::F32) {
        unsafe { S::write_f32(to, x) }
    }

    #[inline(always)]
    unsafe fn write_some<S: Simd>(to: *mut Self, x: S::F32, n: usize) {
        let mut all = [0.0; MOST_LANES];
        unsafe {
            S::write_f32(all.as_mut_ptr(), x);
            to.copy_from_nonoverlapping(all.as_ptr(), n);
        }
    }
}

impl Float for f16 {
    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const Self) -> S::F32 {
        unsafe { S::read_f16(from) }
    }

    #[inline(always)]
    unsafe fn read_some<S: Simd>(from: *const Self, n: usize) -> S::F32 {
        unsafe { S::read_some_f16(from, n) }
    }

    #[inline(always)]
    unsafe fn write<S: Simd>(to: *mut Self, x: S::F32) {
        unsafe { S::write_f16(to, x) }
    }

    #[inline(always)]
    unsafe fn write_some<S: Simd>(to: *mut Self, x: S::F32, n: usize) {
        let mut all = [f16::ZERO; MOST_LANES];
        unsafe {
            S::write_f16(all.as_mut_ptr(), x);
            to.copy_from_nonoverlapping(all.as_ptr(), n);
        }
    }
}
