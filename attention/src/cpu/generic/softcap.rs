//! Soft caps: products become scores that are not beyond a bound.

use kvcache_simd::Function;

use super::exp::tanh;
use super::rows::BLOCK;
use super::tiles::Tiles;

/// Rows of products, of `keys` keys each, rounded up to whole registers, one row each [`BLOCK`] elements.
pub(crate) struct Products {
    pub(crate) products: *mut f32,
    pub(crate) rows: usize,
    pub(crate) keys: usize,
    /// The factor of products.
    pub(crate) factor: f32,
    pub(crate) softcap: f32,
}

/// Turns products into `softcap * tanh(product * factor / softcap)`.
pub(crate) struct SoftCap;

impl<S: Tiles> Function<S> for SoftCap {
    type Arguments<'a> = Products;
    type Output = ();

    #[inline(always)]
    unsafe fn run(&Products { products, rows, keys, factor, softcap }: &Products) {
        // SAFETY: these products are there.
        unsafe {
            // Of a number so small that its reciprocal is infinite, that times 0 would be NaN.
            let [factor, softcap, reciprocal] = [factor, softcap, softcap.recip().min(f32::MAX)].map(|x| S::splat(x));
            for row in 0..rows {
                for at in (0..keys).step_by(S::LANES) {
                    let at = products.add(row * BLOCK + at);
                    let score = S::mul(S::read_f32(at), factor);
                    S::write_f32(at, S::mul(tanh::<S>(S::mul(score, reciprocal)), softcap));
                }
            }
        }
    }
}
