//! Dequantizes columns.

use std::marker::PhantomData;

use kvcache_simd::Function;

use super::dot::Dot;
use crate::matrix::{COLUMNS, LINE, Matrix};
use crate::reference::one_nan;

/// A column to be dequantized.
pub(super) struct Column<'a> {
    pub(super) matrix: &'a Matrix<'a>,
    /// Less than N.
    pub(super) column: usize,
    /// Room for K float32.
    pub(super) y: *mut f32,
}

/// Dequantizes a column.
pub(super) struct Gather<S>(PhantomData<S>);

impl<S: Dot> Function<S> for Gather<S> {
    type Arguments<'a> = Column<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(&Column { matrix, column, y }: &Column<'_>) {
        // SAFETY: there is room for K float32 at y, and the matrix has the column: see `Column`.
        unsafe {
            match (matrix.shape().bits, matrix.minima()) {
                (4, None) => gather::<4>(matrix, column, y, |code, at| (code - 8.0) * matrix.scales()[at]),
                (_, None) => gather::<8>(matrix, column, y, |code, at| (code - 128.0) * matrix.scales()[at]),
                (4, Some(minima)) => {
                    gather::<4>(matrix, column, y, |code, at| matrix.scales()[at].mul_add(code, minima[at]))
                }
                (_, Some(minima)) => {
                    gather::<8>(matrix, column, y, |code, at| matrix.scales()[at].mul_add(code, minima[at]))
                }
            }
        }
    }
}

/// Writes what a function makes of the column's codes and the places of their scales.
///
/// # Safety
/// `y` is valid for writes of K float32, and `column` is less than N.
#[inline(always)]
unsafe fn gather<const BITS: usize>(
    matrix: &Matrix<'_>,
    column: usize,
    y: *mut f32,
    weight: impl Fn(f32, usize) -> f32,
) {
    let shape = matrix.shape();
    let block_bytes = shape.block_bytes();
    let lines = block_bytes / LINE;
    for b in 0..shape.blocks() {
        let at = shape.scale_position(b, column);
        let codes = &matrix.panels()[at / COLUMNS * block_bytes..][..block_bytes];
        let len = shape.block_size.min(shape.k - b * shape.block_size);
        for i in 0..len {
            let byte = codes[i / 4 % lines * LINE + column % COLUMNS * 4 + i % 4];
            let code = if BITS == 4 { byte >> (i / 4 / lines * 4) & 15 } else { byte };
            // SAFETY: b * block_size + i < K.
            unsafe { y.add(b * shape.block_size + i).write(one_nan(weight(f32::from(code), at))) };
        }
    }
}
