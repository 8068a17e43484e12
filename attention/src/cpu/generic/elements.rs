//! Floats and codes in the registers of any instruction set.
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
    /// The number as float32.
    unsafe fn to_f32<S: Simd>(self) -> f32;
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

    #[inline(always)]
    unsafe fn to_f32<S: Simd>(self) -> f32 {
        self
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

    #[inline(always)]
    unsafe fn to_f32<S: Simd>(self) -> f32 {
        unsafe { S::f16_to_f32(self) }
    }
}

/// What keys and values are made of, before any scale.
///
/// # Safety
/// As for [`Simd`], whose functions these choose from.
pub(crate) trait Element {
    /// The bytes of so many elements, which are whole bytes.
    fn bytes(len: usize) -> usize;
    /// Reads a register.
    unsafe fn read<S: Simd>(from: *const u8) -> S::F32;
}

/// Codes of a quantized cache.
///
/// # Safety
/// As for [`Simd`], whose functions these choose from.
pub(crate) trait Codes: Element {
    /// Codes in 32 bits.
    const IN_WORD: usize;
    /// Code `i` of each lane's 32 bits.
    unsafe fn code<S: Simd>(words: S::F32, i: usize) -> S::F32;
}

impl Element for f32 {
    #[inline(always)]
    fn bytes(len: usize) -> usize {
        4 * len
    }

    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const u8) -> S::F32 {
        unsafe { S::read_f32(from.cast()) }
    }
}

impl Element for f16 {
    #[inline(always)]
    fn bytes(len: usize) -> usize {
        2 * len
    }

    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const u8) -> S::F32 {
        unsafe { S::read_f16(from.cast()) }
    }
}

/// Codes of eight bits.
pub(crate) struct Int8;

impl Element for Int8 {
    #[inline(always)]
    fn bytes(len: usize) -> usize {
        len
    }

    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const u8) -> S::F32 {
        unsafe { S::read_i8(from) }
    }
}

impl Codes for Int8 {
    const IN_WORD: usize = 4;

    #[inline(always)]
    unsafe fn code<S: Simd>(words: S::F32, i: usize) -> S::F32 {
        unsafe { S::code_i8(words, i) }
    }
}

/// Codes of four bits: two a byte, the first in the low nibble.
pub(crate) struct Int4;

impl Element for Int4 {
    #[inline(always)]
    fn bytes(len: usize) -> usize {
        len / 2
    }

    #[inline(always)]
    unsafe fn read<S: Simd>(from: *const u8) -> S::F32 {
        unsafe { S::read_i4(from) }
    }
}

impl Codes for Int4 {
    const IN_WORD: usize = 8;

    #[inline(always)]
    unsafe fn code<S: Simd>(words: S::F32, i: usize) -> S::F32 {
        unsafe { S::code_i4(words, i) }
    }
}
