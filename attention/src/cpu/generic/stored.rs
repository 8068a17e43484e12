//! Rows of keys or values in registers, as they are stored.

use kvcache_simd::{Float, Simd};

use super::rows::Rows;
use super::tiles::Tiles;

/// How rows are stored, for registers of S.
///
/// # Safety
/// The conditions are those of [`Simd`]; rows are whole registers.
pub(crate) trait Stored<S: Simd> {
    /// Bytes of a register.
    const BYTES: usize;

    /// What is known of a row before its elements are read.
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

/// Codes of so many bits, eight or four, with scales of float32: the values are the products. If WIDE, a scale is for
/// whole registers.
pub(crate) struct Codes<const BITS: usize, const WIDE: bool>;

impl<S: Tiles, const BITS: usize, const WIDE: bool> Stored<S> for Codes<BITS, WIDE> {
    const BYTES: usize = S::LANES * BITS / 8;

    /// Where its codes and its scales begin.
    type Row = (*const u8, *const f32);

    #[inline(always)]
    unsafe fn row(rows: &Rows<'_>, offset: usize, scale: usize) -> Self::Row {
        (rows.from.wrapping_add(offset), rows.scale.wrapping_add(scale).cast())
    }

    #[inline(always)]
    unsafe fn read<const C: usize>(rows: &Rows<'_>, (codes, scales): Self::Row, at: usize) -> [S::F32; C] {
        // SAFETY: the registers are the row's, and so are the scales of their groups.
        unsafe {
            let mut registers = [S::splat(0.0); C];
            for (c, register) in registers.iter_mut().enumerate() {
                let at = at + c * S::LANES;
                let codes = codes.add(at * BITS / 8);
                let codes = if BITS == 8 { S::read_int8(codes) } else { S::read_int4(codes) };
                let scales = scales.add(at >> rows.group_bits);
                let scales = if WIDE { S::splat(*scales) } else { S::read_scales(scales, rows.group_bits) };
                *register = S::mul(codes, scales);
            }
            registers
        }
    }
}
