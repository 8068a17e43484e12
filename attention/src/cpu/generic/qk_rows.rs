//! QK scores over rows of keys: inner products of few queries and keys, with elements of `head_dim` in the lanes of a
//! register. For so few, a panel would be written and read for little.

use std::marker::PhantomData;

use kvcache_simd::Function;

use super::qk_panels::PARTS;
use super::rows::{BLOCK, Cursor, Rows};
use super::stored::Stored;
use super::tiles::Tiles;

/// Keys that are multiplied at once.
const KEYS: usize = 4;

/// Queries, keys, and where the products are written.
pub(crate) struct RowScores<'a> {
    /// `queries` rows of float32, one each `query_step` elements.
    pub(crate) query: *const f32,
    pub(crate) query_step: usize,
    pub(crate) queries: usize,
    /// `keys` rows or more, a multiple of 16, of a multiple of [`PARTS`] elements.
    pub(crate) rows: Rows<'a>,
    pub(crate) keys: usize,
    /// For each query a row of as many products, one row each [`BLOCK`] elements.
    pub(crate) scores: *mut f32,
}

/// Multiplies each query with each key, stored as V: the sums of [`QkPanels`](super::qk_panels::QkPanels), to the bit.
pub(crate) struct QkRows<V>(PhantomData<V>);

impl<S: Tiles, V: Stored<S>> Function<S> for QkRows<V> {
    type Arguments<'a> = RowScores<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(products: &RowScores<'_>) {
        let mut query = 0;
        // SAFETY: the queries from `query` on are there.
        unsafe {
            while products.queries - query >= 4 {
                queries::<S, V, 4, 1>(products, query);
                query += 4;
            }
            if products.queries - query >= 2 {
                queries::<S, V, 2, 2>(products, query);
                query += 2;
            }
            if products.queries - query == 1 {
                queries::<S, V, 1, 4>(products, query);
            }
        }
    }
}

/// Q queries with all keys, TILES times [`KEYS`] at once; Q and TILES make four. The first queries prefetch what comes
/// next.
#[inline(always)]
unsafe fn queries<S: Tiles, V: Stored<S>, const Q: usize, const TILES: usize>(products: &RowScores<'_>, query: usize) {
    let &RowScores { ref rows, keys, scores, .. } = products;
    let step = TILES * KEYS;
    // Where there are two registers of partial sums, one after the other, there are accumulators for two keys.
    let at_once = if S::LANES == PARTS { KEYS } else { 2 };
    let (mut cursor, lines) = rows.prefetch.in_steps(keys, keys / at_once * (rows.len / PARTS));
    let lines = if query == 0 { lines } else { 0 };
    for first in (0..keys).step_by(step) {
        // SAFETY: there are that many rows; Q queries from `query` on have BLOCK products each.
        unsafe {
            let mut sums = [S::splat(0.0); 4 * KEYS];
            for at in (0..step).step_by(at_once) {
                let (here, next) = ([query, first + at], (&mut cursor, lines));
                if S::LANES == PARTS {
                    tile::<S, V, Q, KEYS, 1>(products, here, next, &mut sums, [at, step]);
                } else {
                    tile::<S, V, Q, 2, 2>(products, here, next, &mut sums, [at, step]);
                }
            }
            let mut to = [scores; 4];
            for (i, to) in to.iter_mut().enumerate() {
                *to = to.add((query + i / TILES) * BLOCK + first + i % TILES * KEYS);
            }
            S::sum_lanes(sums, to);
        }
    }
}

/// The partial sums of Q queries from `query` on and K keys from `key` on: R registers, one after the other, which are
/// added to one. The first query and key have register `at` of all, the next query's registers begin `step` later.
#[inline(always)]
unsafe fn tile<S: Tiles, V: Stored<S>, const Q: usize, const K: usize, const R: usize>(
    &RowScores { query: queries, query_step, ref rows, .. }: &RowScores<'_>,
    [query, key]: [usize; 2],
    (cursor, lines): (&mut Cursor<'_>, usize),
    all: &mut [S::F32; 4 * KEYS],
    [at, step]: [usize; 2],
) {
    // SAFETY: that many queries and rows are there; each is whole times R registers.
    unsafe {
        let queries = queries.add(query * query_step);
        let (offsets, scale_offsets) = (&rows.offsets[key..][..K], &rows.scale_offsets[key..][..K]);
        if lines > 0 {
            rows.prefetch.scales(key..key + K);
        }
        let mut here = [V::row(rows, offsets[0], scale_offsets[0]); K];
        for (k, here) in here.iter_mut().enumerate().skip(1) {
            *here = V::row(rows, offsets[k], scale_offsets[k]);
        }
        for r in 0..R {
            // As evenly as can be: lines that are prefetched in bursts come late.
            let lines = if r == 0 { lines.div_ceil(R) } else { lines / R };
            let mut sums = [[S::splat(0.0); K]; Q];
            let mut d = r * S::LANES;
            while d < rows.len {
                cursor.advance(lines);
                let mut keys = [S::splat(0.0); K];
                for (k, key) in keys.iter_mut().enumerate() {
                    [*key] = V::read(rows, here[k], d);
                }
                for (q, sums) in sums.iter_mut().enumerate() {
                    let query = S::read_f32(queries.add(q * query_step + d));
                    for (k, sum) in sums.iter_mut().enumerate() {
                        *sum = S::mul_add(query, keys[k], *sum);
                    }
                }
                d += R * S::LANES;
            }
            for (q, sums) in sums.iter().enumerate() {
                for (k, &sum) in sums.iter().enumerate() {
                    let to = &mut all[q * step + at + k];
                    *to = if r == 0 { sum } else { S::add(*to, sum) };
                }
            }
        }
    }
}
