//! Inner products of queries and keys.

use super::outline::Function;
use super::panel::BLOCK;
use super::simd::Simd;

/// Queries, a panel of keys, and where the products are written.
pub(crate) struct Products {
    /// `queries` rows of `head_dim` float32, one each `query_step` elements.
    pub(crate) query: *const f32,
    pub(crate) query_step: usize,
    pub(crate) queries: usize,
    pub(crate) head_dim: usize,
    /// A panel of `head_dim` elements, of whose keys the first `keys` are used, in whole registers.
    pub(crate) panel: *const f32,
    pub(crate) keys: usize,
    /// For each query a row of as many products, one row each [`BLOCK`] elements.
    pub(crate) scores: *mut f32,
}

/// Multiplies each query with each key: fused multiply-adds from the first element of `head_dim` to the last.
pub(crate) struct Scores;

impl Function for Scores {
    type Arguments<'a> = Products;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(products: &Products) {
        let mut query = 0;
        // SAFETY: the queries from `query` on are there.
        unsafe {
            while products.queries - query >= 8 && S::ACCUMULATORS >= 16 {
                queries::<S, 8>(products, query);
                query += 8;
            }
            while products.queries - query >= 4 {
                queries::<S, 4>(products, query);
                query += 4;
            }
            match products.queries - query {
                1 => queries::<S, 1>(products, query),
                2 => queries::<S, 2>(products, query),
                3 => queries::<S, 3>(products, query),
                _ => (),
            }
        }
    }
}

/// Q queries with all keys, as many registers at once as there are accumulators for.
#[inline(always)]
unsafe fn queries<S: Simd, const Q: usize>(products: &Products, query: usize) {
    let mut key = 0;
    // SAFETY: the keys from `key` on are there.
    unsafe {
        while products.keys - key >= 4 * S::LANES && 4 * Q <= S::ACCUMULATORS {
            tile::<S, Q, 4>(products, query, key);
            key += 4 * S::LANES;
        }
        while products.keys - key >= 2 * S::LANES {
            tile::<S, Q, 2>(products, query, key);
            key += 2 * S::LANES;
        }
        if key < products.keys {
            tile::<S, Q, 1>(products, query, key);
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Simd, const Q: usize, const N: usize>(products: &Products, query: usize, key: usize) {
    let &Products { query_step, head_dim, .. } = products;
    // SAFETY: Q queries from `query` on and N registers of keys from `key` on are there.
    unsafe {
        let queries = products.query.add(query * query_step);
        let panel = products.panel.add(key);
        let mut sums = [[S::splat(0.0); N]; Q];
        for d in 0..head_dim {
            let mut keys = [S::splat(0.0); N];
            for (n, keys) in keys.iter_mut().enumerate() {
                *keys = S::read_f32(panel.add(d * BLOCK + n * S::LANES));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let q = S::splat(*queries.add(i * query_step + d));
                for (sum, &keys) in sums.iter_mut().zip(&keys) {
                    *sum = S::mul_add(q, keys, *sum);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            let to = products.scores.add((query + i) * BLOCK + key);
            for (n, &sum) in sums.iter().enumerate() {
                S::write_f32(to.add(n * S::LANES), sum);
            }
        }
    }
}
