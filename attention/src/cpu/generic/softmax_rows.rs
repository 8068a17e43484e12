//! The weights of a block of keys for many queries at once, where nothing is added to the products.
//!
//! Each row's sums have the same bits as in [`Softmax`](super::softmax::Softmax). The maxima of a register of rows are
//! found together, and so are the factors that rescale earlier sums.

use std::cell::Cell;

use kvcache_simd::{Function, MOST_LANES};

use super::exp::exp;
use super::rows::BLOCK;
use super::softmax::{COUNT, MASKED, SUMS};
use super::tiles::{Registers, Tiles};

/// The products of some queries with the keys of a block, and what is known of the keys before.
pub(crate) struct ScoreRows<'a> {
    /// For each query a row of products, one row each [`BLOCK`] elements. The products of the keys that it sees
    /// become weights.
    pub(crate) scores: *mut f32,
    /// The number of keys that each query sees, the first ones.
    pub(crate) seen: &'a [usize],
    /// The factor of products.
    pub(crate) factor: f32,
    /// For each query the largest score so far, and [`SUMS`] partial sums of weights.
    pub(crate) max: *mut f32,
    pub(crate) sums: *mut f32,
    /// For each query the factor that rescales its earlier sums.
    pub(crate) rescale: *mut f32,
}

/// Turns the products of many queries into weights.
pub(crate) struct SoftmaxRows;

impl<S: Tiles> Function<S> for SoftmaxRows {
    type Arguments<'a> = ScoreRows<'a>;
    /// Whether there are keys that a query sees, with a score of -inf by their numbers. Their weight is [`MASKED`].
    type Output = bool;

    #[inline(always)]
    unsafe fn run(rows: &ScoreRows<'_>) -> bool {
        let mut masked = false;
        for (i, seen) in rows.seen.chunks(S::LANES).enumerate() {
            // SAFETY: as many rows as `seen` are there from `i * LANES` on.
            masked |= unsafe { some_rows::<S>(rows, i * S::LANES, seen) };
        }
        masked
    }
}

/// The weights of a register of rows, or of fewer, from `first` on.
#[inline(always)]
unsafe fn some_rows<S: Tiles>(rows: &ScoreRows<'_>, first: usize, seen: &[usize]) -> bool {
    let masked = f32::NEG_INFINITY;
    let mut lanes = [masked; MOST_LANES];
    let (mut references, mut rescales) = ([0.0; MOST_LANES], [0.0; MOST_LANES]);
    // SAFETY: each row has its products up to a whole register; a maximum, SUMS sums and a factor. The arrays have a
    // register's lanes, of which only the lanes of rows are written back.
    unsafe {
        let scores = Maxima { rows, first, seen, unseen: Cell::new(0) };
        let maxima = S::square(&scores);
        let unread: usize = seen.iter().map(|seen| seen.next_multiple_of(S::LANES) - seen).sum();
        let any_masked = scores.unseen.get() > unread;
        lanes.as_mut_ptr().copy_from_nonoverlapping(rows.max.add(first), seen.len());
        let before = S::read_f32(lanes.as_ptr());
        let mut largest = before;
        for &column in S::transpose(maxima).as_ref() {
            largest = S::max(column, largest);
        }
        // Nothing seen so far: any number will do, as all weights are 0, or NaN.
        let reference = S::if_equal(largest, S::splat(masked), S::splat(0.0), largest);
        let rescale = S::if_equal(largest, before, S::splat(1.0), exp::<S>(S::sub(before, reference)));
        S::write_f32(lanes.as_mut_ptr(), largest);
        S::write_f32(references.as_mut_ptr(), reference);
        S::write_f32(rescales.as_mut_ptr(), rescale);
        rows.max.add(first).copy_from_nonoverlapping(lanes.as_ptr(), seen.len());
        rows.rescale.add(first).copy_from_nonoverlapping(rescales.as_ptr(), seen.len());

        for (i, &seen) in seen.iter().enumerate() {
            let (scores, sums) = (rows.scores.add((first + i) * BLOCK), rows.sums.add((first + i) * SUMS));
            let (reference, rescale) = (S::splat(references[i]), S::splat(rescales[i]));
            for part in (0..SUMS).step_by(S::LANES) {
                let mut sum = S::mul(S::read_f32(sums.add(part)), rescale);
                for at in (part..seen).step_by(SUMS) {
                    let score = S::read_f32(scores.add(at));
                    let mut weights = exp::<S>(S::sub(score, reference));
                    if any_masked {
                        weights = S::if_equal(score, S::splat(masked), S::splat(MASKED), weights);
                    }
                    S::write_f32(scores.add(at), weights);
                    sum = S::add(sum, weights);
                }
                S::write_f32(sums.add(part), sum);
            }
        }
        any_masked
    }
}

/// The maxima of the scores of some rows, of each in as many lanes: products become scores.
struct Maxima<'a> {
    rows: &'a ScoreRows<'a>,
    first: usize,
    seen: &'a [usize],
    /// The number of scores that are -inf, with the last registers' lanes that stand for no key.
    unseen: Cell<usize>,
}

impl<S: Tiles> Registers<S> for Maxima<'_> {
    #[inline(always)]
    unsafe fn read(&self, i: usize) -> S::F32 {
        let masked = f32::NEG_INFINITY;
        let seen = self.seen.get(i).copied().unwrap_or(0);
        let scores = self.rows.scores.wrapping_add((self.first + i) * BLOCK);
        // SAFETY: the row has its products up to a whole register.
        unsafe {
            let mut maximum = S::splat(masked);
            for at in (0..seen).step_by(S::LANES) {
                let mut score = S::mul(S::read_f32(scores.add(at)), S::splat(self.rows.factor));
                if seen - at < S::LANES {
                    let numbers = S::read_f32(COUNT.as_ptr());
                    score = S::if_less(numbers, S::splat((seen - at) as f32), score, S::splat(masked));
                }
                self.unseen.update(|unseen| unseen + S::count_equal(score, S::splat(masked)));
                maximum = S::max(score, maximum);
                S::write_f32(scores.add(at), score);
            }
            maximum
        }
    }
}
