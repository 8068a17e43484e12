//! Rows of keys or values in registers, as they are stored.

use kvcache_simd::{Float, Simd};

use super::rows::Rows;

/// How rows are stored, for registers of S.
///
/// # Safety
/// The conditions are those of [`Simd`]; rows are whole registers.
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
