//! PV products over rows of values: sums of weighted values for few queries.

use std::marker::PhantomData;

use kvcache_simd::{Function, LINE};

use super::rows::{BLOCK, Rows};
use super::stored::Stored;
use super::tiles::Tiles;

/// Rows of codes that are added between two prefetches.
const EVERY: usize = 8;

/// Weights of some queries, rows of values, and the sums that they are added to.
pub(crate) struct WeightedRows<'a> {
    /// For each of `queries` queries a row of weights, one for each row of values; one row each [`BLOCK`] elements.
    pub(crate) weights: *const f32,
    pub(crate) queries: usize,
    /// Rows of `width` elements, whole registers.
    pub(crate) rows: Rows<'a>,
    pub(crate) width: usize,
    /// Elements that have weights of their own, whole registers; and numbers from one such group's weights to the next
    /// group's.
    pub(crate) group: usize,
    pub(crate) group_step: usize,
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
    let registers = values.width / S::LANES;
    let group = if V::GROUPS { values.group / S::LANES } else { registers };
    let mut at = 0;
    // SAFETY: the registers from `at` on are there in each row, and each C of them are of one group.
    unsafe {
        while at < registers {
            let left = registers - at;
            // Each register with weights of its own, so that they are operands from memory and not in registers.
            if V::GROUPS && S::BROADCASTS && left >= 4 && 4 * Q <= S::ACCUMULATORS {
                some::<S, V, Q, 1, 4>(values, query, at * S::LANES);
                at += 4;
                continue;
            }
            if V::GROUPS && S::BROADCASTS && left >= 2 {
                some::<S, V, Q, 1, 2>(values, query, at * S::LANES);
                at += 2;
                continue;
            }
            // Of two groups at once, where one has too few.
            if V::GROUPS && group == 2 && left >= 4 && 4 * Q <= S::ACCUMULATORS {
                some::<S, V, Q, 2, 2>(values, query, at * S::LANES);
                at += 4;
                continue;
            }
            match group - at % group {
                left if left >= 8 && 8 * Q <= S::ACCUMULATORS.max(8) => {
                    some::<S, V, Q, 8, 1>(values, query, at * S::LANES);
                    at += 8;
                }
                left if left >= 4 && 4 * Q <= S::ACCUMULATORS => {
                    some::<S, V, Q, 4, 1>(values, query, at * S::LANES);
                    at += 4;
                }
                left if left >= 2 => {
                    some::<S, V, Q, 2, 1>(values, query, at * S::LANES);
                    at += 2;
                }
                _ => {
                    some::<S, V, Q, 1, 1>(values, query, at * S::LANES);
                    at += 1;
                }
            }
        }
    }
}

/// G times C registers of the sums of Q queries, C of them of one group; the first queries of all prefetch.
#[inline(always)]
unsafe fn some<S: Tiles, V: Stored<S>, const Q: usize, const C: usize, const G: usize>(
    values: &WeightedRows<'_>,
    query: usize,
    at: usize,
) {
    // SAFETY: Q queries and G times C registers are there: this function's condition.
    unsafe {
        match query {
            0 if !values.rows.prefetch.offsets.is_empty() => tile::<S, V, Q, C, G, true>(values, query, at),
            _ => tile::<S, V, Q, C, G, false>(values, query, at),
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Tiles, V: Stored<S>, const Q: usize, const C: usize, const G: usize, const PREFETCH: bool>(
    values: &WeightedRows<'_>,
    query: usize,
    at: usize,
) {
    // SAFETY: Q queries from `query` on are there, and G times C registers from `at` on in each row.
    unsafe {
        let mut sums = [[[S::splat(0.0); C]; G]; Q];
        let to = values.sums.add(query * values.width + at);
        for (i, sums) in sums.iter_mut().enumerate() {
            let rescale = S::splat(*values.rescale.add(query + i));
            for (r, sum) in sums.as_flattened_mut().iter_mut().enumerate() {
                *sum = S::mul(S::read_f32(to.add(i * values.width + r * S::LANES)), rescale);
            }
        }
        let mut weights = [values.weights.add(query * BLOCK); G];
        for (g, weights) in weights.iter_mut().enumerate().filter(|_| V::GROUPS) {
            *weights = weights.add((at + g * C * S::LANES) / values.group * values.group_step);
        }
        // These registers' share of the rows to prefetch. Finding a line takes as long as a row of codes; floats wait
        // for memory anyway.
        let rows = &values.rows;
        let (count, lines) = (rows.offsets.len(), (G * C * V::BYTES).div_ceil(LINE));
        let share = count * at / values.width..count * (at + G * C * S::LANES) / values.width;
        let (every, lines) = if S::BROADCASTS || !V::GROUPS {
            (1, lines)
        } else {
            (EVERY, rows.prefetch.lines(share.len()).div_ceil(count.div_ceil(EVERY).max(1)))
        };
        let mut cursor = rows.prefetch.cursor(share);
        for (t, (&offset, &scale)) in rows.offsets.iter().zip(rows.scale_offsets).enumerate() {
            if PREFETCH && t % every == 0 {
                cursor.advance(lines);
            }
            let row = V::row(rows, offset, scale);
            for g in 0..G {
                let registers: [S::F32; C] = V::read::<C>(rows, row, at + g * C * S::LANES);
                for (i, sums) in sums.iter_mut().enumerate() {
                    let weight = S::splat(*weights[g].add(i * BLOCK + t));
                    for (c, sum) in sums[g].iter_mut().enumerate() {
                        *sum = S::mul_add(weight, registers[c], *sum);
                    }
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (r, &sum) in sums.as_flattened().iter().enumerate() {
                S::write_f32(to.add(i * values.width + r * S::LANES), sum);
            }
        }
    }
}
