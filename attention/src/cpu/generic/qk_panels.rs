//! QK scores over panels of keys: inner products of many queries and keys.

use std::mem::MaybeUninit;

use kvcache_simd::Function;

use super::panel::PANEL;
use super::rows::BLOCK;
use super::tiles::Tiles;

/// Partial sums of an inner product: element d of `head_dim` is added to partial sum `d % PARTS`.
pub(crate) const PARTS: usize = 16;

/// The partial sums as they are added by halves, i and `i + PARTS / 2` first: two neighbors, then twice two, and so on.
const BY_HALVES: [usize; PARTS] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// How often sums are halved until one is left.
const HALVINGS: usize = PARTS.ilog2() as usize;

/// Queries, a panel of keys, and where the products are written.
pub(crate) struct PanelScores {
    /// `queries` rows of `head_dim` float32, one each `query_step` elements.
    pub(crate) query: *const f32,
    pub(crate) query_step: usize,
    pub(crate) queries: usize,
    pub(crate) head_dim: usize,
    /// A panel of as many elements, of whose keys the first ones are used, in whole registers.
    pub(crate) panel: *const f32,
    pub(crate) keys: usize,
    /// For each query a row of as many products, one row each [`BLOCK`] elements.
    pub(crate) scores: *mut f32,
}

/// Multiplies each query with each key: [`PARTS`] partial sums by fused multiply-adds from the first element of
/// `head_dim` to the last, which are added by halves.
pub(crate) struct QkPanels;

impl<S: Tiles> Function<S> for QkPanels {
    type Arguments<'a> = PanelScores;
    type Output = ();

    #[inline(always)]
    unsafe fn run(products: &PanelScores) {
        let mut query = 0;
        // SAFETY: the queries from `query` on are there.
        unsafe {
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

/// Q queries with all keys, two registers of them at once.
#[inline(always)]
unsafe fn queries<S: Tiles, const Q: usize>(products: &PanelScores, query: usize) {
    let (mut key, end) = (0, products.keys);
    // SAFETY: the keys from `key` on are there.
    unsafe {
        while end - key >= 2 * S::LANES {
            some::<S, Q, 2>(products, query, key);
            key += 2 * S::LANES;
        }
        if key < end {
            some::<S, Q, 1>(products, query, key);
        }
    }
}

/// Q queries with N registers of keys: with enough accumulators, two partial sums at once.
#[inline(always)]
unsafe fn some<S: Tiles, const Q: usize, const N: usize>(products: &PanelScores, query: usize, key: usize) {
    // SAFETY: Q queries and N registers of keys are there: this function's condition.
    unsafe {
        if S::ACCUMULATORS >= 16 {
            tile::<S, Q, N, 2>(products, query, key);
        } else {
            tile::<S, Q, N, 1>(products, query, key);
        }
    }
}

/// Q queries with N registers of keys, P partial sums at once: one or two.
#[inline(always)]
unsafe fn tile<S: Tiles, const Q: usize, const N: usize, const P: usize>(
    products: &PanelScores,
    query: usize,
    key: usize,
) {
    let head_dim = products.head_dim;
    // What has been added, until it is added to as much: the digits of a binary counter.
    let mut digits = [const { MaybeUninit::<[[S::F32; N]; Q]>::uninit() }; HALVINGS];
    // SAFETY: Q queries from `query` on and N registers of keys from `key` on are there. Of the digits, those are
    // written that are ones in `i`.
    unsafe {
        let queries = products.query.add(query * products.query_step);
        let panel = products.panel.add(key);
        let scores = products.scores.add(query * BLOCK + key);
        for i in 0..PARTS / P {
            let mut parts = [[[S::splat(0.0); N]; Q]; P];
            let mut d = BY_HALVES[i * P];
            while d + (P - 1) * (PARTS / 2) < head_dim {
                for (p, sums) in parts.iter_mut().enumerate() {
                    add::<S, Q, N>(queries, products.query_step, panel, d + p * (PARTS / 2), sums);
                }
                d += PARTS;
            }
            if d < head_dim {
                add::<S, Q, N>(queries, products.query_step, panel, d, &mut parts[0]);
            }
            let mut sums = parts[0];
            if P == 2 {
                sums = sum::<S, Q, N>(&sums, &parts[P - 1]);
            }
            let mut digit = 0;
            while i >> digit & 1 == 1 {
                sums = sum::<S, Q, N>(&sums, digits.get_unchecked(digit).assume_init_ref());
                digit += 1;
            }
            if i + 1 < PARTS / P {
                digits.get_unchecked_mut(digit).write(sums);
                continue;
            }
            for (q, sums) in sums.iter().enumerate() {
                for (n, &sum) in sums.iter().enumerate() {
                    S::write_f32(scores.add(q * BLOCK + n * S::LANES), sum);
                }
            }
        }
    }
}

/// Adds the products of element `d`.
#[inline(always)]
unsafe fn add<S: Tiles, const Q: usize, const N: usize>(
    queries: *const f32,
    query_step: usize,
    panel: *const f32,
    d: usize,
    sums: &mut [[S::F32; N]; Q],
) {
    // SAFETY: Q queries and N registers of the panel have an element `d`.
    unsafe {
        let mut keys = [S::splat(0.0); N];
        for (n, keys) in keys.iter_mut().enumerate() {
            *keys = S::read_f32(panel.add(d * PANEL + n * S::LANES));
        }
        for (q, sums) in sums.iter_mut().enumerate() {
            let query = S::splat(*queries.add(q * query_step + d));
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = S::mul_add(query, keys[n], *sum);
            }
        }
    }
}

/// `a + b`
#[inline(always)]
unsafe fn sum<S: Tiles, const Q: usize, const N: usize>(
    a: &[[S::F32; N]; Q],
    b: &[[S::F32; N]; Q],
) -> [[S::F32; N]; Q] {
    let mut sums = *a;
    for (q, sums) in sums.iter_mut().enumerate() {
        for (n, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the instruction set is enabled.
            *sum = unsafe { S::add(*sum, b[q][n]) };
        }
    }
    sums
}
