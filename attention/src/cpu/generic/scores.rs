//! Inner products of queries and keys.

use std::marker::PhantomData;

use super::elements::Float;
use super::outline::Function;
use super::panel::BLOCK;
use super::simd::Simd;

/// Queries, a panel of keys, and where the products are written.
pub(crate) struct Products {
    /// `queries` rows of `depth` float32, one each `query_step` elements.
    pub(crate) query: *const f32,
    pub(crate) query_step: usize,
    pub(crate) queries: usize,
    pub(crate) depth: usize,
    /// Whether the elements are the first ones; else they are added to the products of those before.
    pub(crate) first: bool,
    /// A panel of as many elements, of whose keys so many are used from one on, in whole registers.
    pub(crate) panel: *const f32,
    pub(crate) from: usize,
    pub(crate) keys: usize,
    /// For each query a row of as many products, one row each [`BLOCK`] elements.
    pub(crate) scores: *mut f32,
}

/// Multiplies each query with each key: fused multiply-adds from the first element of `head_dim` to the last. The panel
/// is of floats P.
pub(crate) struct Scores<P>(PhantomData<P>);

impl<P: Float> Function for Scores<P> {
    type Arguments<'a> = Products;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(products: &Products) {
        let mut query = 0;
        // SAFETY: the queries from `query` on are there.
        unsafe {
            while products.queries - query >= 8 && S::ACCUMULATORS >= 16 {
                queries::<S, P, 8>(products, query);
                query += 8;
            }
            while products.queries - query >= 4 {
                queries::<S, P, 4>(products, query);
                query += 4;
            }
            match products.queries - query {
                1 => queries::<S, P, 1>(products, query),
                2 => queries::<S, P, 2>(products, query),
                3 => queries::<S, P, 3>(products, query),
                _ => (),
            }
        }
    }
}

/// Q queries with all keys, as many registers at once as there are accumulators for.
#[inline(always)]
unsafe fn queries<S: Simd, P: Float, const Q: usize>(products: &Products, query: usize) {
    let (mut key, end) = (products.from, products.from + products.keys);
    // SAFETY: the keys from `key` on are there.
    unsafe {
        while end - key >= 4 * S::LANES && 4 * Q <= S::ACCUMULATORS {
            tile::<S, P, Q, 4>(products, query, key);
            key += 4 * S::LANES;
        }
        while end - key >= 2 * S::LANES {
            tile::<S, P, Q, 2>(products, query, key);
            key += 2 * S::LANES;
        }
        if key < end {
            tile::<S, P, Q, 1>(products, query, key);
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Simd, P: Float, const Q: usize, const N: usize>(products: &Products, query: usize, key: usize) {
    let &Products { query_step, depth, .. } = products;
    // SAFETY: Q queries from `query` on and N registers of keys from `key` on are there.
    unsafe {
        let queries = products.query.add(query * query_step);
        let panel = products.panel.cast::<P>().add(key);
        let mut sums = [[S::splat(0.0); N]; Q];
        let scores = products.scores.add(query * BLOCK + key);
        if !products.first {
            for (i, sums) in sums.iter_mut().enumerate() {
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = S::read_f32(scores.add(i * BLOCK + n * S::LANES));
                }
            }
        }
        for d in 0..depth {
            let mut keys = [S::splat(0.0); N];
            for (n, keys) in keys.iter_mut().enumerate() {
                *keys = P::read::<S>(panel.add(d * BLOCK + n * S::LANES));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let q = S::splat(*queries.add(i * query_step + d));
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = S::mul_add(q, keys[n], *sum);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (n, &sum) in sums.iter().enumerate() {
                S::write_f32(scores.add(i * BLOCK + n * S::LANES), sum);
            }
        }
    }
}
