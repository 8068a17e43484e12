//! Sums of weighted values.

use super::outline::Function;
use super::simd::Simd;

/// Weights of some queries, rows of values, and the sums that they are added to.
pub(crate) struct Values<'a> {
    /// For each of `queries` queries a row of weights, one for each of `rows`; one row each `weights_step` elements.
    pub(crate) weights: *const f32,
    pub(crate) weights_step: usize,
    pub(crate) queries: usize,
    /// Rows of `width` float32, whole registers.
    pub(crate) rows: &'a [*const f32],
    pub(crate) width: usize,
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
            tile::<S, Q, 8>(values, query, values.width - left * S::LANES);
            left -= 8;
        }
        while left >= 4 && 4 * Q <= S::ACCUMULATORS {
            tile::<S, Q, 4>(values, query, values.width - left * S::LANES);
            left -= 4;
        }
        while left >= 2 {
            tile::<S, Q, 2>(values, query, values.width - left * S::LANES);
            left -= 2;
        }
        if left == 1 {
            tile::<S, Q, 1>(values, query, values.width - S::LANES);
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Simd, const Q: usize, const C: usize>(values: &Values<'_>, query: usize, at: usize) {
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
        let weights = values.weights.add(query * values.weights_step);
        for (t, row) in values.rows.iter().enumerate() {
            let mut registers = [S::splat(0.0); C];
            for (c, register) in registers.iter_mut().enumerate() {
                *register = S::read_f32(row.add(at + c * S::LANES));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let weight = S::splat(*weights.add(i * values.weights_step + t));
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
