//! Inner products of queries and keys.

use super::outline::Function;
use super::panel::PANEL_REGISTERS;
use super::simd::Simd;

/// Queries, panels of keys, and where the products are written.
pub(crate) struct Products {
    /// `queries` rows of `head_dim` float32, one each `query_step` elements.
    pub(crate) query: *const f32,
    pub(crate) query_step: usize,
    pub(crate) queries: usize,
    pub(crate) head_dim: usize,
    /// Panels of `width` elements for so many registers of keys.
    pub(crate) panels: *const f32,
    pub(crate) width: usize,
    pub(crate) registers: usize,
    /// For each query a row of as many products, one row each `scores_step` elements.
    pub(crate) scores: *mut f32,
    pub(crate) scores_step: usize,
}

/// Multiplies each query with each key: fused multiply-adds from the first element of `head_dim` to the last.
pub(crate) struct Scores;

impl Function for Scores {
    type Arguments<'a> = Products;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(products: &Products) {
        for first in (0..products.registers).step_by(PANEL_REGISTERS) {
            // SAFETY: these registers of keys are there.
            unsafe {
                match products.registers - first {
                    1 => panel::<S, 1>(products, first),
                    _ => panel::<S, PANEL_REGISTERS>(products, first),
                }
            }
        }
    }
}

/// All queries with the first N registers of a panel.
#[inline(always)]
unsafe fn panel<S: Simd, const N: usize>(products: &Products, first: usize) {
    let mut query = 0;
    // SAFETY: the queries from `query` on are there.
    unsafe {
        while products.queries - query >= 8 && S::ACCUMULATORS >= 16 {
            tile::<S, N, 8>(products, first, query);
            query += 8;
        }
        while products.queries - query >= 4 {
            tile::<S, N, 4>(products, first, query);
            query += 4;
        }
        match products.queries - query {
            1 => tile::<S, N, 1>(products, first, query),
            2 => tile::<S, N, 2>(products, first, query),
            3 => tile::<S, N, 3>(products, first, query),
            _ => (),
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Simd, const N: usize, const Q: usize>(products: &Products, first: usize, query: usize) {
    let step = PANEL_REGISTERS * S::LANES;
    // SAFETY: Q queries from `query` on, and N registers of keys from `first` on, which begins a panel, are there.
    unsafe {
        let queries = products.query.add(query * products.query_step);
        let panel = products.panels.add(first / PANEL_REGISTERS * (products.width * step));
        let mut sums = [[S::splat(0.0); N]; Q];
        for d in 0..products.head_dim {
            let mut keys = [S::splat(0.0); N];
            for (n, keys) in keys.iter_mut().enumerate() {
                *keys = S::read_f32(panel.add(d * step + n * S::LANES));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let q = S::splat(*queries.add(i * products.query_step + d));
                for (sum, &keys) in sums.iter_mut().zip(&keys) {
                    *sum = S::mul_add(q, keys, *sum);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            let to = products.scores.add((query + i) * products.scores_step + first * S::LANES);
            for (n, &sum) in sums.iter().enumerate() {
                S::write_f32(to.add(n * S::LANES), sum);
            }
        }
    }
}
