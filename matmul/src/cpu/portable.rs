//! Plain Rust.

use std::array::from_fn;

use kvcache_simd::{Function, Outlined};

use super::dot::{Columns, Dot};
use crate::matrix::COLUMNS;
use crate::reference::NAN;

// SAFETY of every block: pointers are valid for what is read or written (see the traits).
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl Columns for [f32; COLUMNS] {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [x; COLUMNS]
    }

    #[inline(always)]
    unsafe fn read(from: *const f32) -> Self {
        unsafe { from.cast::<Self>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn write(self, to: *mut f32) {
        unsafe { to.cast::<Self>().write_unaligned(self) }
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        from_fn(|c| self[c] + b[c])
    }

    #[inline(always)]
    unsafe fn scale(self, x: f32) -> Self {
        self.map(|each| each * x)
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        from_fn(|i| self[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    unsafe fn one_nan(self) -> Self {
        self.map(|x| if x.is_nan() { NAN } else { x })
    }
}

/// Plain Rust, with words of int16 if `PAIRS`.
pub(super) struct Portable<const PAIRS: bool>;

#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
impl<const PAIRS: bool> Dot for Portable<PAIRS> {
    const ROWS: usize = 2;
    const PAIRS: bool = PAIRS;
    type Codes = [u32; COLUMNS];
    type Sums = [i32; COLUMNS];
    type Floats = [f32; COLUMNS];

    fn outlined<F: Function<Self>>() -> Outlined<Self, F> {
        F::run
    }

    #[inline(always)]
    unsafe fn read(from: *const u8) -> Self::Codes {
        unsafe { from.cast::<[[u8; 4]; COLUMNS]>().read() }.map(u32::from_le_bytes)
    }

    #[inline(always)]
    unsafe fn write(codes: Self::Codes, to: *mut u8) {
        unsafe { to.cast::<[[u8; 4]; COLUMNS]>().write(codes.map(u32::to_le_bytes)) }
    }

    #[inline(always)]
    unsafe fn codes<const BITS: usize, const PART: usize>(line: *const u8) -> Self::Codes {
        let (shift, mask) = match (PAIRS, BITS) {
            (false, 4) => (4 * PART, 0x0f0f_0f0f),
            (false, _) => (0, u32::MAX),
            (true, 4) => (4 * (PART / 2) + 8 * (PART % 2), 0x000f_000f),
            (true, _) => (8 * PART, 0x00ff_00ff),
        };
        unsafe { Self::read(line) }.map(|column| column >> shift & mask)
    }

    #[inline(always)]
    unsafe fn begin(start: i32) -> Self::Sums {
        [start; COLUMNS]
    }

    #[inline(always)]
    unsafe fn dot<const P: usize, const I: usize>(
        sums: &mut [Self::Sums; P],
        codes: [Self::Codes; P],
        words: *const u32,
    ) {
        let word = unsafe { words.add(I).read() };
        for (sum, &code) in sums.as_flattened_mut().iter_mut().zip(codes.as_flattened()) {
            if PAIRS {
                let product = |shift: u32| (code >> shift & 0xffff) as i32 * i32::from((word >> shift) as i16);
                *sum += product(0) + product(16);
            } else {
                let product = |shift: u32| (code >> shift & 0xff) as i32 * i32::from((word >> shift) as i8);
                *sum += product(0) + product(8) + product(16) + product(24);
            }
        }
    }

    #[inline(always)]
    unsafe fn finish(sums: Self::Sums, _: i32) -> Self::Floats {
        sums.map(|sum| sum as f32)
    }
}
