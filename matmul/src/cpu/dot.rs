//! What an instruction set can do with 16 columns.

use kvcache_simd::{Function, Outlined};

/// 16 float32, one of each column of a panel.
///
/// # Safety
/// Functions may be called where the instruction set is enabled. Pointers need no alignment.
pub(crate) trait Columns: Copy {
    /// `x` of every column.
    unsafe fn splat(x: f32) -> Self;
    /// Reads 16 float32.
    unsafe fn read(from: *const f32) -> Self;
    /// Writes 16 float32.
    unsafe fn write(self, to: *mut f32);
    /// `self + b`
    unsafe fn add(self, b: Self) -> Self;
    /// `self * x`
    unsafe fn scale(self, x: f32) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// Each NaN becomes [`NAN`](crate::reference::NAN).
    unsafe fn one_nan(self) -> Self;
}

/// An instruction set that makes dot products of codes and words; a word is a row's codes of four k in int8, or of two
/// in int16.
///
/// # Safety
/// Functions may be called where the instruction set is enabled. Pointers need no alignment.
pub(crate) trait Dot: Sized {
    /// Rows of a tile, at most: as many as there are registers for.
    const ROWS: usize;
    /// Whether words are of int16. A line's four k are then the pairs of first and third, and of second and fourth.
    const PAIRS: bool;
    /// Rows of a tile, at most, where the codes of a panel are unpacked into memory before they are multiplied, which
    /// takes fewer registers.
    const UNPACKED_ROWS: usize = Self::ROWS;
    /// Panels of a tile there, 1 or 2: with 2 a word is read once for both, and blocks are unpacked some at a time.
    const UNPACKED_PANELS: usize = 1;
    /// A panel's code of 8 bits less the one that [`codes`](Self::codes) gives.
    const OFFSET: i32 = 0;

    /// The codes of 16 columns for a word: 64 bytes.
    type Codes: Copy;
    /// The sums of 16 columns, of a block of up to 32 codes.
    type Sums: Copy;
    /// Float32 of 16 columns.
    type Floats: Columns;

    /// An outlined `#[target_feature]` function.
    fn outlined<F: Function<Self>>() -> Outlined<Self, F>;

    /// Codes as they lie in memory.
    unsafe fn read(from: *const u8) -> Self::Codes;
    /// Writes codes to memory.
    unsafe fn write(codes: Self::Codes, to: *mut u8);
    /// The codes of a line for one of its words: [`word`] says for which.
    unsafe fn codes<const BITS: usize, const PART: usize>(line: *const u8) -> Self::Codes;
    /// Sums that begin at `start`, or at 0 if [`finish`](Self::finish) adds it.
    unsafe fn begin(start: i32) -> Self::Sums;
    /// Adds the products of each panel's codes with the `I`-th word.
    unsafe fn dot<const P: usize, const I: usize>(
        sums: &mut [Self::Sums; P],
        codes: [Self::Codes; P],
        words: *const u32,
    );
    /// The sums as float32, rounded to nearest.
    unsafe fn finish(sums: Self::Sums, start: i32) -> Self::Floats;
}

/// Words of a row's block.
pub(crate) const fn words<S: Dot>(block_size: usize) -> usize {
    block_size / if S::PAIRS { 2 } else { 4 }
}

/// Words that a line has codes for.
pub(crate) const fn line_parts<S: Dot>(bits: usize) -> usize {
    (if S::PAIRS { 2 } else { 1 }) * 8 / bits
}

/// The word, of a block's in ascending order of k, that a part of a line has the codes of.
pub(crate) const fn word<S: Dot>(line: usize, part: usize, lines: usize) -> usize {
    match S::PAIRS {
        false => line + part * lines,
        true => 2 * (line + part / 2 * lines) + part % 2,
    }
}
