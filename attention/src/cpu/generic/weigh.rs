//! Sums of weighted values.

use super::outline::Function;
use super::panel::BLOCK;
use super::rows::{LINE, Next};
use super::simd::Simd;

/// Weights of some queries, rows of values, and the sums that they are added to.
pub(crate) struct Values<'a> {
    /// For each of `queries` queries a row of weights, one for each row of values; one row each [`BLOCK`] elements.
    pub(crate) weights: *const f32,
    pub(crate) queries: usize,
    /// Rows of `width` float32, whole registers, by how many bytes behind `from` they begin.
    pub(crate) from: *const u8,
    pub(crate) offsets: &'a [usize],
    pub(crate) width: usize,
    /// Rows that are read soon, at least as many.
    pub(crate) next: Option<Next<'a>>,
    /// For each query what its sums are multiplied with before, and a row of sums, one each `width` elements.
    pub(crate) rescale: *const f32,
    pub(crate) sums: *mut f32,
}

/// Adds weighted values to rescaled sums: fused multiply-adds from the first row to the last.
pub(crate) struct Weigh;

impl Function for Weigh {
    type Arguments<'a> = Values<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(values: &Values<'_>) {
        let mut query = 0;
        // SAFETY: the queries from `query` on are there.
        unsafe {
            while values.queries - query >= 8 && S::ACCUMULATORS >= 16 {
                columns::<S, 8>(values, query);
                query += 8;
            }
            while values.queries - query >= 4 {
                columns::<S, 4>(values, query);
                query += 4;
            }
            match values.queries - query {
                1 => columns::<S, 1>(values, query),
                2 => columns::<S, 2>(values, query),
                3 => columns::<S, 3>(values, query),
                _ => (),
            }
        }
    }
}

/// All registers of the sums of Q queries, as many at once as there are accumulators for.
#[inline(always)]
unsafe fn columns<S: Simd, const Q: usize>(values: &Values<'_>, query: usize) {
    let mut left = values.width / S::LANES;
    // SAFETY: `left` registers are left of each row.
    unsafe {
        while left >= 8 && 8 * Q <= S::ACCUMULATORS.max(8) {
            some::<S, Q, 8>(values, query, values.width - left * S::LANES);
            left -= 8;
        }
        while left >= 4 && 4 * Q <= S::ACCUMULATORS {
            some::<S, Q, 4>(values, query, values.width - left * S::LANES);
            left -= 4;
        }
        while left >= 2 {
            some::<S, Q, 2>(values, query, values.width - left * S::LANES);
            left -= 2;
        }
        if left == 1 {
            some::<S, Q, 1>(values, query, values.width - S::LANES);
        }
    }
}

/// C registers of the sums of Q queries; the first queries of all prefetch what comes next.
#[inline(always)]
unsafe fn some<S: Simd, const Q: usize, const C: usize>(values: &Values<'_>, query: usize, at: usize) {
    // SAFETY: the same conditions.
    unsafe {
        match query {
            0 if values.next.is_some() => tile::<S, Q, C, true>(values, query, at),
            _ => tile::<S, Q, C, false>(values, query, at),
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Simd, const Q: usize, const C: usize, const NEXT: bool>(
    values: &Values<'_>,
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
        let rows = [at, at + C * S::LANES].map(|at| values.offsets.len() * at / values.width);
        let mut cursor =
            values.next.as_ref().map(|next| next.cursor(rows[0]..rows[1], values.width * size_of::<f32>()));
        for (t, &offset) in values.offsets.iter().enumerate() {
            if NEXT && let Some(cursor) = &mut cursor {
                cursor.advance((C * S::LANES * size_of::<f32>()).div_ceil(LINE));
            }
            let row = values.from.add(offset).cast::<f32>();
            let mut registers = [S::splat(0.0); C];
            for (c, register) in registers.iter_mut().enumerate() {
                *register = S::read_f32(row.add(at + c * S::LANES));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let weight = S::splat(*weights.add(i * BLOCK + t));
                for (sum, &register) in sums.iter_mut().zip(&registers) {
                    *sum = S::mul_add(weight, register, *sum);
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
