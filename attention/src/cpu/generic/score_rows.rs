//! Inner products of few queries and keys of float32, which are transposed in registers: for so few, a panel would be
//! written and read for little.

use super::outline::Function;
use super::panel::{BLOCK, WORDS, prefetches};
use super::read_rows::rounded;
use super::rows::Rows;
use super::simd::Simd;

/// Queries, keys, and where the products are written.
pub(crate) struct RowProducts<'a> {
    /// `queries` rows of float32, one each `query_step` elements: 1, 2, 3, 4 or 8.
    pub(crate) query: *const f32,
    pub(crate) query_step: usize,
    pub(crate) queries: usize,
    /// [`BLOCK`] rows of float32, of whole columns of [`WORDS`]; those from `keys` on, which are whole registers, need
    /// not be multiplied.
    pub(crate) rows: Rows<'a>,
    pub(crate) keys: usize,
    /// For each query a row of as many products, one row each [`BLOCK`] elements.
    pub(crate) scores: *mut f32,
}

/// Multiplies each query with each key, with `ROUND` rounded to float16: fused multiply-adds from the first element of
/// `head_dim` to the last.
pub(crate) struct ScoreRows<const ROUND: bool>;

impl<const ROUND: bool> Function for ScoreRows<ROUND> {
    type Arguments<'a> = RowProducts<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(products: &RowProducts<'_>) {
        // SAFETY: so many queries are there.
        unsafe {
            match products.queries {
                1 => queries::<S, ROUND, 1>(products),
                2 => queries::<S, ROUND, 2>(products),
                3 => queries::<S, ROUND, 3>(products),
                4 => queries::<S, ROUND, 4>(products),
                8 => queries::<S, ROUND, 8>(products),
                queries => unreachable!("{queries} queries are not few"),
            }
        }
    }
}

/// Q queries with all keys.
#[inline(always)]
unsafe fn queries<S: Simd, const ROUND: bool, const Q: usize>(products: &RowProducts<'_>) {
    let &RowProducts { query, query_step, ref rows, keys, scores, .. } = products;
    let steps = keys / S::LANES * rows.len / WORDS;
    let (mut cursor, lines) = prefetches(rows, &(0..rows.len), size_of::<f32>() * rows.len, steps);
    for first in (0..keys).step_by(S::LANES) {
        // SAFETY: there are BLOCK rows, and as many are next; each has whole columns.
        unsafe {
            let offsets = rows.offsets.as_ptr().add(first);
            let mut sums = [S::splat(0.0); Q];
            for d in (0..rows.len).step_by(WORDS) {
                cursor.advance(lines);
                let columns = S::read_columns(rows.from.add(size_of::<f32>() * d), offsets);
                for (j, &column) in columns.iter().enumerate() {
                    let keys = rounded::<S, ROUND>(column);
                    for (q, sum) in sums.iter_mut().enumerate() {
                        *sum = S::mul_add(S::splat(*query.add(q * query_step + d + j)), keys, *sum);
                    }
                }
            }
            for (q, &sum) in sums.iter().enumerate() {
                S::write_f32(scores.add(q * BLOCK + first), sum);
            }
        }
    }
}
