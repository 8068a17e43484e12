//! Rows of keys or values in registers, as they are stored.

use kvcache_simd::{Float, Simd};

use super::rows::Rows;

/// How rows are stored, for registers of S.
///
/// # Safety
/// The conditions of [`Simd`] hold; rows are whole registers.
pub(crate) trait Stored<S: Simd> {
    /// Bytes of a register.
    const BYTES: usize;

    /// Whether scales are multiplied with weights, so that groups have weights of their own.
    const GROUPS: bool = false;

    /// The addresses of a row's elements and scales.
    type Row: Copy;

    /// The row that begins at the offset, and its scales at theirs.
    unsafe fn row(rows: &Rows<'_>, offset: usize, scale: usize) -> Self::Row;

    /// C registers from element `at` on.
    unsafe fn read<const C: usize>(rows: &Rows<'_>, row: Self::Row, at: usize) -> [S::F32; C];
}

impl<S: Simd, E: Float> Stored<S> for E {
    const BYTES: usize = S::LANES * size_of::<E>();

    type Row = *const E;

    #[inline(always)]
    unsafe fn row(rows: &Rows<'_>, offset: usize, _: usize) -> *const E {
        rows.from.wrapping_add(offset).cast()
    }

    #[inline(always)]
    unsafe fn read<const C: usize>(_: &Rows<'_>, row: *const E, at: usize) -> [S::F32; C] {
        // SAFETY: the registers are the row's.
        unsafe {
            let mut registers = [S::splat(0.0); C];
            for (c, register) in registers.iter_mut().enumerate() {
                *register = E::read::<S>(row.add(at + c * S::LANES));
            }
            registers
        }
    }
}

/// Integer codes of that many bits, eight or four: a value is code times scale, but scales enter sums, not these
/// numbers.
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
