//! Integer codes of a quantized cache as numbers: a value is code times scale, and scales enter sums, not numbers.

use kvcache_simd::Simd;

use super::panel::PANEL;
use super::rows::{BLOCK, Rows};
use super::stored::Stored;

/// Rows of codes of that many bits, eight or four.
pub(crate) struct IntCodes<const BITS: usize>;

impl<S: Simd, const BITS: usize> Stored<S> for IntCodes<BITS> {
    const BYTES: usize = S::LANES * BITS / 8;
    const GROUPS: bool = true;
    type Row = *const u8;

    #[inline(always)]
    unsafe fn row(rows: &Rows<'_>, offset: usize, _: usize) -> *const u8 {
        rows.from.wrapping_add(offset)
    }

    #[inline(always)]
    unsafe fn read<const C: usize>(_: &Rows<'_>, row: *const u8, at: usize) -> [S::F32; C] {
        // SAFETY: the registers are the row's.
        unsafe {
            let mut registers = [S::splat(0.0); C];
            for (c, register) in registers.iter_mut().enumerate() {
                let codes = row.add((at + c * S::LANES) * BITS / 8);
                *register = if BITS == 8 { S::read_i8(codes) } else { S::read_i4(codes) };
            }
            registers
        }
    }
}

/// What a lane of a panel holds.
///
/// # Safety
/// The conditions are those of [`Simd`].
pub(crate) trait Lane<S: Simd> {
    /// Codes in a lane.
    const CODES: usize;

    /// Keys in a panel.
    const KEYS: usize;

    /// The `i`-th code of each lane.
    unsafe fn code(lanes: S::F32, i: usize) -> S::F32;
}

/// A word of codes of that many bits.
pub(crate) struct Word<const BITS: usize>;

impl<S: Simd, const BITS: usize> Lane<S> for Word<BITS> {
    const CODES: usize = 32 / BITS;
    const KEYS: usize = BLOCK;

    #[inline(always)]
    unsafe fn code(lanes: S::F32, i: usize) -> S::F32 {
        // SAFETY: the function's own conditions.
        unsafe { if BITS == 8 { S::i8_of_four(lanes, i) } else { S::i4_of_eight(lanes, i) } }
    }
}

/// A code as float32.
impl<S: Simd> Lane<S> for f32 {
    const CODES: usize = 1;
    const KEYS: usize = PANEL;

    #[inline(always)]
    unsafe fn code(lanes: S::F32, _: usize) -> S::F32 {
        lanes
    }
}
