//! The weights of a block of keys, from their products with queries.

use std::marker::PhantomData;
use std::ops::Range;

use kvcache_simd::{Float, Function, MOST_LANES};

use super::exp::exp;
use super::query_row::QueryRow;
use super::rows::BLOCK;
use super::tiles::Tiles;

/// Partial sums of weights: that of key t is added to partial sum `t % SUMS`.
pub(crate) const SUMS: usize = 16;

/// The weight of a key that the query does not see: -0. A seen key's is +0 where it underflows.
pub(crate) const HIDDEN: f32 = -0.0;

/// The products of some queries with the keys of a block, and what is known of the keys before.
pub(crate) struct Block<'a> {
    pub(crate) rows: &'a [QueryRow],
    /// The block's keys.
    pub(crate) keys: Range<usize>,
    /// For each row as many products, rounded up to whole [`SUMS`], one row each [`BLOCK`]; they become weights.
    pub(crate) scores: *mut f32,
    /// What products are multiplied with.
    pub(crate) factor: f32,
    /// For each row the largest score so far, and [`SUMS`] partial sums of weights.
    pub(crate) max: *mut f32,
    pub(crate) sums: *mut f32,
    /// For each row what has been summed before is to be multiplied with.
    pub(crate) rescale: *mut f32,
}

/// Turns products into weights; the mask is of type T.
pub(crate) struct Softmax<T>(PhantomData<T>);

/// The numbers from 0 on.
pub(super) const COUNT: [f32; MOST_LANES] = {
    let mut count = [0.0; MOST_LANES];
    let mut i = 0;
    while i < MOST_LANES {
        count[i] = i as f32;
        i += 1;
    }
    count
};

/// Which weights are [`HIDDEN`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Hidden {
    /// Some row's weight of some key of the block.
    pub(crate) any: bool,
    /// Some row's weight of a key that the row sees but for the mask: it is masked, or its score is -inf by itself.
    pub(crate) among_visible: bool,
}

impl<S: Tiles, T: Float> Function<S> for Softmax<T> {
    type Arguments<'a> = Block<'a>;
    type Output = Hidden;

    #[inline(always)]
    unsafe fn run(block: &Block<'_>) -> Hidden {
        let mut hidden = Hidden::default();
        for r in 0..block.rows.len() {
            // SAFETY: the block has so many rows.
            let Hidden { any, among_visible } = unsafe { row::<S, T>(block, r) };
            hidden = Hidden { any: hidden.any | any, among_visible: hidden.among_visible | among_visible };
        }
        hidden
    }
}

#[inline(always)]
unsafe fn row<S: Tiles, T: Float>(block: &Block<'_>, r: usize) -> Hidden {
    let hidden = f32::NEG_INFINITY;
    let (keys, len) = (block.keys.len(), block.keys.len().next_multiple_of(SUMS));
    let row = &block.rows[r];
    let visible = row.visible.saturating_sub(block.keys.start).min(keys);
    let biased = !row.mask.is_null() || row.slope != 0.0;
    // SAFETY: each row has `len` scores, one maximum and SUMS sums.
    unsafe {
        let (scores, sums, max) = (block.scores.add(r * BLOCK), block.sums.add(r * SUMS), block.max.add(r));
        let before = *max;
        let mut largest = S::splat(before);
        let mut unseen = 0;
        for at in (0..len).step_by(S::LANES) {
            let product = S::read_f32(scores.add(at));
            let mut score = S::mul(product, S::splat(block.factor));
            if biased {
                score = biased_score::<S, T>(block, row, at, visible, product);
            }
            if visible < at + S::LANES {
                let seen = S::splat(visible.saturating_sub(at) as f32);
                score = S::if_less(S::read_f32(COUNT.as_ptr()), seen, score, S::splat(hidden));
            }
            unseen += S::count_equal(score, S::splat(hidden));
            largest = S::max(score, largest);
            S::write_f32(scores.add(at), score);
        }
        let largest = S::max_lane(largest);
        // Nothing seen so far: any number will do, as all weights are 0, or NaN.
        let reference = if largest == hidden { 0.0 } else { largest };
        let mut rescale = 1.0;
        if largest != before {
            rescale = exp_of::<S>(before - reference);
            *max = largest;
        }
        *block.rescale.add(r) = rescale;
        for i in (0..SUMS).step_by(S::LANES) {
            let mut sum = S::mul(S::read_f32(sums.add(i)), S::splat(rescale));
            for at in (i..len).step_by(SUMS) {
                let score = S::read_f32(scores.add(at));
                let weight = exp::<S>(S::sub(score, S::splat(reference)));
                let weight = S::if_equal(score, S::splat(hidden), S::splat(HIDDEN), weight);
                S::write_f32(scores.add(at), weight);
                sum = S::add(sum, weight);
            }
            S::write_f32(sums.add(i), sum);
        }
        Hidden { any: unseen > len - keys, among_visible: unseen > len - visible }
    }
}

/// The scores of a register of keys from `at` on: `product * factor + bias`, and -inf where the bias is. The keys from
/// `visible` on have any.
#[inline(always)]
unsafe fn biased_score<S: Tiles, T: Float>(
    block: &Block<'_>,
    row: &QueryRow,
    at: usize,
    visible: usize,
    product: S::F32,
) -> S::F32 {
    let first = block.keys.start + at;
    // SAFETY: of the mask, only what is visible is read.
    unsafe {
        let mut bias = S::splat(0.0);
        if !row.mask.is_null() {
            let mask = row.mask.cast::<T>().wrapping_add(first);
            bias = match visible.saturating_sub(at) {
                seen if seen >= S::LANES => T::read::<S>(mask),
                seen => T::read_some::<S>(mask, seen),
            };
        }
        let distance = S::add(S::read_f32(COUNT.as_ptr()), S::splat((first as i64 - row.position) as f32));
        bias = S::mul_add(S::splat(row.slope), distance, bias);
        let score = S::mul_add(product, S::splat(block.factor), bias);
        S::if_equal(bias, S::splat(f32::NEG_INFINITY), bias, score)
    }
}

/// [`exp`] of one number.
///
/// # Safety
/// The instruction set is enabled.
#[inline(always)]
pub(crate) unsafe fn exp_of<S: Tiles>(x: f32) -> f32 {
    let mut lanes = [0.0; MOST_LANES];
    // SAFETY: the array has a register's lanes.
    unsafe { S::write_f32(lanes.as_mut_ptr(), exp::<S>(S::splat(x))) }
    lanes[0]
}
