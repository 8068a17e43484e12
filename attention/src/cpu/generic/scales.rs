//! Scales of a block of rows: by groups, and times weights.

use kvcache_simd::Function;

use super::panel::WORDS;
use super::rows::BLOCK;
use super::tiles::Tiles;

/// Rows of scales, and where they are written by groups.
pub(crate) struct Transpose<'a> {
    /// Where the rows are, whole registers of them, and how many bytes after it each begins: `len` float32, and as
    /// many more can be read as make whole times [`WORDS`].
    pub(crate) from: *const u8,
    pub(crate) offsets: &'a [usize],
    pub(crate) len: usize,
    /// Whether infinities become NaN.
    pub(crate) nan_for_infinity: bool,
    /// `len` rows of as many, one each [`BLOCK`] elements.
    pub(crate) to: *mut f32,
}

/// Transposes scales.
pub(crate) struct TransposeScales;

impl<S: Tiles> Function<S> for TransposeScales {
    type Arguments<'a> = Transpose<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(&Transpose { from, offsets, len, nan_for_infinity, to }: &Transpose<'_>) {
        for (i, offsets) in offsets.chunks_exact(S::LANES).enumerate() {
            for group in (0..len).step_by(WORDS) {
                // SAFETY: these rows are there; what is after a row's end is not written.
                unsafe {
                    let columns = S::read_columns(from.add(size_of::<f32>() * group), offsets.as_ptr());
                    for (word, &scales) in columns.iter().enumerate().take(len - group) {
                        let column = if nan_for_infinity { S::add(scales, S::sub(scales, scales)) } else { scales };
                        S::write_f32(to.add((group + word) * BLOCK + i * S::LANES), column);
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
    /// `keys` scales of each of `groups` groups, one row each [`BLOCK`] elements.
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
