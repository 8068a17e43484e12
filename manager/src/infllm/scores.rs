//! The score of a block for a query: representatives of its keys, bounds of its keys, and the best of all blocks.
//!
//! Sums have a fixed order, so that they are the same on every machine: element i is added to the partial sum i mod 64,
//! in float32 and without fused operations; then the upper half of the partial sums is added to the lower one, six
//! times. Compilers make vectors of that.

use std::cmp::Ordering;

const LANES: usize = 64;

/// The sum of `term(a, b, c)` over the elements.
fn sum(a: &[f32], b: &[f32], c: &[f32], term: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let ((a, a_rest), (b, b_rest), (c, c_rest)) =
        (a.as_chunks::<LANES>(), b.as_chunks::<LANES>(), c.as_chunks::<LANES>());
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for i in 0..LANES {
            sums[i] += term(a[i], b[i], c[i]);
        }
    }
    for (((sum, &a), &b), &c) in sums.iter_mut().zip(a_rest).zip(b_rest).zip(c_rest) {
        *sum += term(a, b, c);
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            sums[i] += sums[i + width];
        }
    }
    sums[0]
}

/// The dot product of a query with a representative.
#[inline(never)] // by itself it becomes vectors
pub(crate) fn dot(query: &[f32], representative: &[f32]) -> f32 {
    sum(query, representative, representative, |q, k, _| q * k)
}

/// The largest dot product that a query can have with a key whose elements are between these bounds.
#[inline(never)] // by itself it becomes vectors
pub(crate) fn bound(query: &[f32], min: &[f32], max: &[f32]) -> f32 {
    sum(query, min, max, |q, min, max| {
        let (a, b) = (q * min, q * max);
        if a > b { a } else { b }
    })
}

/// Larger numbers come first, then lower indexes; NaN comes last.
fn order(scores: &[f32]) -> impl Fn(&u32, &u32) -> Ordering {
    move |&a, &b| {
        let (x, y) = (scores[a as usize], scores[b as usize]);
        x.is_nan().cmp(&y.is_nan()).then(y.partial_cmp(&x).unwrap_or(Ordering::Equal)).then(a.cmp(&b))
    }
}

/// The indexes of the `k` best scores, or of all, in ascending order. Of equal ones the lower index is better; NaN is
/// worst.
pub(crate) fn top_k(scores: &[f32], k: usize) -> Vec<u32> {
    let mut indexes: Vec<u32> = (0..scores.len() as u32).collect();
    if k < indexes.len() {
        if k > 0 {
            indexes.select_nth_unstable_by(k - 1, order(scores));
        }
        indexes.truncate(k);
        indexes.sort_unstable();
    }
    indexes
}

/// The mean of the keys of the `k` tokens with the best scores: `keys` has a key for each score. Keys are added in
/// order.
pub(crate) fn representative<'a>(keys: impl Fn(usize) -> &'a [f32], scores: &[f32], k: usize, mean: &mut [f32]) {
    let best = top_k(scores, k);
    mean.fill(0.0);
    for &token in &best {
        mean.iter_mut().zip(keys(token as usize)).for_each(|(sum, x)| *sum += x);
    }
    mean.iter_mut().for_each(|sum| *sum /= best.len() as f32);
}

/// The least and the largest element of keys, by element. NaN is no element.
pub(crate) fn bounds<'a>(keys: impl Iterator<Item = &'a [f32]>, min: &mut [f32], max: &mut [f32]) {
    min.fill(f32::INFINITY);
    max.fill(f32::NEG_INFINITY);
    for key in keys {
        for ((min, max), &x) in min.iter_mut().zip(&mut *max).zip(key) {
            (*min, *max) = (min.min(x), max.max(x));
        }
    }
}

/// A score, smoothed by the one before it, if there is a finite one: a query that is not finite spoils one step.
pub(crate) fn smooth(alpha: f32, before: Option<f32>, new: f32) -> f32 {
    before.filter(|before| before.is_finite()).map_or(new, |before| alpha * new + (1.0 - alpha) * before)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vectors() -> impl Strategy<Value = (Vec<f32>, Vec<f32>, Vec<f32>)> {
        let vector = |len| prop::collection::vec(-4.0_f32..4.0, len);
        (0_usize..200).prop_flat_map(move |len| (vector(len), vector(len), vector(len)))
    }

    proptest! {
        #[test]
        fn sums_are_in_the_stated_order((q, a, b) in vectors()) {
            let naive = |term: &dyn Fn(usize) -> f32| {
                let mut sums = [0.0_f32; 64];
                (0..q.len()).for_each(|i| sums[i % 64] += term(i));
                for width in [32, 16, 8, 4, 2, 1] {
                    (0..width).for_each(|i| sums[i] += sums[i + width]);
                }
                sums[0]
            };
            prop_assert_eq!(dot(&q, &a), naive(&|i| q[i] * a[i]));
            let (mut min, mut max) = (vec![0.0; q.len()], vec![0.0; q.len()]);
            bounds([&a[..], &b[..]].into_iter(), &mut min, &mut max);
            prop_assert_eq!(bound(&q, &min, &max), naive(&|i| (q[i] * a[i]).max(q[i] * b[i])));
            // What a bound is for: no key between has a larger product.
            prop_assert!(bound(&q, &min, &max) >= dot(&q, &a).max(dot(&q, &b)) - 1e-3);
        }

        /// By repeated search for the best.
        #[test]
        fn the_best_are_found_with_ties_and_nan(
            scores in prop::collection::vec(
                prop_oneof![4 => (0_u8..6).prop_map(f32::from), 1 => Just(f32::NAN)],
                0..40,
            ),
            k in 0_usize..12,
        ) {
            let mut left: Vec<usize> = (0..scores.len()).collect();
            let mut best = Vec::new();
            while best.len() < k && !left.is_empty() {
                let mut at = 0;
                for i in 1..left.len() {
                    let (x, y) = (scores[left[i]], scores[left[at]]);
                    if x > y || y.is_nan() && !x.is_nan() {
                        at = i;
                    }
                }
                best.push(left.remove(at) as u32);
            }
            best.sort_unstable();
            prop_assert_eq!(top_k(&scores, k), best);
        }
    }

    #[test]
    fn golden_g22_smoothing() {
        let smoothed = [1.0, 0.0, 0.0].into_iter().fold(None, |before, new| Some(smooth(0.05, before, new)));
        assert!(smoothed.is_some_and(|smoothed| (smoothed - 0.9025).abs() < 1e-6), "{smoothed:?}");
        assert_eq!([f32::NAN, f32::INFINITY].map(|before| smooth(0.05, Some(before), 2.0)), [2.0, 2.0]);
    }
}
