//! PV products over rows of values: sums of weighted values for few queries.

use std::marker::PhantomData;

use kvcache_simd::{Function, LINE};

use super::rows::{BLOCK, Rows};
use super::stored::Stored;
use super::tiles::Tiles;

/// Weights of some queries, rows of values, and the sums that they are added to.
pub(crate) struct WeightedRows<'a> {
    /// For each of `queries` queries a row of weights, one for each row of values; one row each [`BLOCK`] elements.
    pub(crate) weights: *const f32,
    pub(crate) queries: usize,
    /// Rows of `width` elements, whole registers.
    pub(crate) rows: Rows<'a>,
    pub(crate) width: usize,
    /// Whether the rows that are next are prefetched.
    pub(crate) prefetch: bool,
    /// For each query what its sums are multiplied with before, and a row of sums, one each `width` elements.
    pub(crate) rescale: *const f32,
    pub(crate) sums: *mut f32,
}

/// Adds weighted values, stored as V, to rescaled sums: fused multiply-adds from the first row to the last.
pub(crate) struct PvRows<V>(PhantomData<V>);

impl<S: Tiles, V: Stored<S>> Function<S> for PvRows<V> {
    type Arguments<'a> = WeightedRows<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(values: &WeightedRows<'_>) {
        let mut query = 0;
        // SAFETY: the queries from `query` on are there.
        unsafe {
            while values.queries - query >= 8 && S::ACCUMULATORS >= 16 {
                columns::<S, V, 8>(values, query);
                query += 8;
            }
            while values.queries - query >= 4 {
                columns::<S, V, 4>(values, query);
                query += 4;
            }
            match values.queries - query {
                1 => columns::<S, V, 1>(values, query),
                2 => columns::<S, V, 2>(values, query),
                3 => columns::<S, V, 3>(values, query),
                _ => (),
            }
        }
    }
}

/// All registers of the sums of Q queries, as many at once as there are accumulators for.
#[inline(always)]
unsafe fn columns<S: Tiles, V: Stored<S>, const Q: usize>(values: &WeightedRows<'_>, query: usize) {
    let mut left = values.width / S::LANES;
    // SAFETY: `left` registers are left of each row.
    unsafe {
        while left >= 8 && 8 * Q <= S::ACCUMULATORS.max(8) {
            some::<S, V, Q, 8>(values, query, values.width - left * S::LANES);
            left -= 8;
        }
        while left >= 4 && 4 * Q <= S::ACCUMULATORS {
            some::<S, V, Q, 4>(values, query, values.width - left * S::LANES);
            left -= 4;
        }
        while left >= 2 {
            some::<S, V, Q, 2>(values, query, values.width - left * S::LANES);
            left -= 2;
        }
        if left == 1 {
            some::<S, V, Q, 1>(values, query, values.width - S::LANES);
        }
    }
}

/// C registers of the sums of Q queries; the first queries of all prefetch what comes next.
#[inline(always)]
unsafe fn some<S: Tiles, V: Stored<S>, const Q: usize, const C: usize>(
    values: &WeightedRows<'_>,
    query: usize,
    at: usize,
) {
    // SAFETY: Q queries and C registers are there: this function's condition.
    unsafe {
        match query {
            0 if values.prefetch => tile::<S, V, Q, C, true>(values, query, at),
            _ => tile::<S, V, Q, C, false>(values, query, at),
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Tiles, V: Stored<S>, const Q: usize, const C: usize, const NEXT: bool>(
    values: &WeightedRows<'_>,
    query: usize,
    at: usize,
) {
    // SAFETY: Q queries from `query` on are there, and C registers from `at` on in each row.
    unsafe {
        let mut sums = [[S::splat(0.0); C]; Q];
        for (i, sums) in sums.iter_mut().enumerate() {
            let rescale = S::splat(*values.rescale.add(query + i));
            for (c, sum) in sums.iter_mut().enumerate() {
                let from = values.sums.add((query + i) * values.width + at + c * S::LANES);
                *sum = S::mul(S::read_f32(from), rescale);
            }
        }
        let weights = values.weights.add(query * BLOCK);
        // Of the rows that are next, as many as these are of the registers.
        let rows = &values.rows;
        let first = rows.offsets.len() * at / values.width;
        let end = rows.offsets.len() * (at + C * S::LANES) / values.width;
        let (mut cursor, lines) = (rows.next.cursor(first..end), (C * V::BYTES).div_ceil(LINE));
        for (t, (&offset, &scale)) in rows.offsets.iter().zip(rows.scale_offsets).enumerate() {
            if NEXT {
                cursor.advance(lines);
            }
            let registers: [S::F32; C] = V::read::<C>(rows, V::row(rows, offset, scale), at);
            for (i, sums) in sums.iter_mut().enumerate() {
                let weight = S::splat(*weights.add(i * BLOCK + t));
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = S::mul_add(weight, registers[c], *sum);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (c, &sum) in sums.iter().enumerate() {
                S::write_f32(values.sums.add((query + i) * values.width + at + c * S::LANES), sum);
            }
        }
    }
}
