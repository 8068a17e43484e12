//! Scales of a block of rows: by groups, and times weights.

use kvcache_simd::{Function, MOST_LANES};

use super::panel::WORDS;
use super::rows::BLOCK;
use super::tiles::Tiles;

/// Rows of scales, and where they are written by groups.
pub(crate) struct Transpose {
    /// `rows` rows, whole registers of them, of `len` float32, one after the other; three more can be read.
    pub(crate) from: *const f32,
    pub(crate) rows: usize,
    pub(crate) len: usize,
    /// Whether infinities become NaN.
    pub(crate) nan_for_infinity: bool,
    /// `len` rows of as many, one each [`BLOCK`] elements.
    pub(crate) to: *mut f32,
}

/// Transposes scales.
pub(crate) struct TransposeScales;

impl<S: Tiles> Function<S> for TransposeScales {
    type Arguments<'a> = Transpose;
    type Output = ();

    #[inline(always)]
    unsafe fn run(&Transpose { from, rows, len, nan_for_infinity, to }: &Transpose) {
        let mut offsets = [0; MOST_LANES];
        for (r, offset) in offsets.iter_mut().enumerate() {
            *offset = r * len * size_of::<f32>();
        }
        for first in (0..rows).step_by(S::LANES) {
            for group in (0..len).step_by(WORDS) {
                // SAFETY: these rows are there, and three numbers more; those behind a row's end are not written.
                unsafe {
                    let columns = S::read_columns(from.add(first * len + group).cast(), offsets.as_ptr());
                    for (i, &scales) in columns.iter().enumerate().take(len - group) {
                        let column = if nan_for_infinity { S::add(scales, S::sub(scales, scales)) } else { scales };
                        S::write_f32(to.add((group + i) * BLOCK + first), column);
                    }
                }
            }
        }
    }
}

/// Weights and scales, and where their products are written.
pub(crate) struct Scaled {
    /// `queries` rows of weights of `keys` keys, whole registers, one row each [`BLOCK`] elements.
    pub(crate) weights: *const f32,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    /// As many scales of each of `groups` groups, one row each [`BLOCK`] elements.
    pub(crate) scales: *const f32,
    pub(crate) groups: usize,
    /// For each group as many rows as `weights`.
    pub(crate) to: *mut f32,
}

/// Multiplies weights with scales.
pub(crate) struct ScaleWeights;

impl<S: Tiles> Function<S> for ScaleWeights {
    type Arguments<'a> = Scaled;
    type Output = ();

    #[inline(always)]
    unsafe fn run(&Scaled { weights, queries, keys, scales, groups, to }: &Scaled) {
        for group in 0..groups {
            for query in 0..queries {
                for t in (0..keys).step_by(S::LANES) {
                    // SAFETY: these weights and scales are there, and room for their products.
                    unsafe {
                        let weights = S::read_f32(weights.add(query * BLOCK + t));
                        let product = S::mul(weights, S::read_f32(scales.add(group * BLOCK + t)));
                        S::write_f32(to.add((group * queries + query) * BLOCK + t), product);
                    }
                }
            }
        }
    }
}
