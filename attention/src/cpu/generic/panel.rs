//! Keys as the inner products want them: a panel has, for each element of `head_dim`, that of [`PANEL_REGISTERS`]
//! registers of keys.

use super::outline::Function;
use super::simd::Simd;

/// Registers of keys in a panel.
pub(crate) const PANEL_REGISTERS: usize = 2;

/// Keys as rows, and the panels to write, one after the other.
pub(crate) struct Pack<'a> {
    /// Rows of `width` float32, in whole registers of rows.
    pub(crate) rows: &'a [*const f32],
    /// Elements of a row, a multiple of a register.
    pub(crate) width: usize,
    /// Panels of `width` elements for as many keys as there are rows.
    pub(crate) panels: *mut f32,
}

/// Packs keys into panels.
pub(crate) struct PackKeys;

impl Function for PackKeys {
    type Arguments<'a> = Pack<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(&Pack { rows, width, panels }: &Pack<'_>) {
        let step = PANEL_REGISTERS * S::LANES;
        for (i, rows) in rows.chunks_exact(S::LANES).enumerate() {
            let at = i / PANEL_REGISTERS * (width * step) + i % PANEL_REGISTERS * S::LANES;
            for d in (0..width).step_by(S::LANES) {
                // SAFETY: the rows have a register of elements from d on, and the panels one of keys for each of them.
                unsafe {
                    let mut square = S::zeros();
                    for (register, row) in square.as_mut().iter_mut().zip(rows) {
                        *register = S::read_f32(row.add(d));
                    }
                    let square = S::transpose(square);
                    let to = panels.add(at + d * step);
                    for (j, &register) in square.as_ref().iter().enumerate() {
                        S::write_f32(to.add(j * step), register);
                    }
                }
            }
        }
    }
}
