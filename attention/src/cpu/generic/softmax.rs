//! The weights of a block of keys, from their products with a query.

use std::marker::PhantomData;

use super::elements::Float;
use super::exp::exp;
use super::outline::Function;
use super::simd::{MOST_LANES, Simd};

/// Partial sums of weights: that of key t is added to partial sum `t % SUMS`.
pub(crate) const SUMS: usize = 16;

/// The weight of a key that the query does not see: -0. A seen key's is +0 where it underflows.
pub(crate) const HIDDEN: f32 = -0.0;

/// The products of one query with the keys of a block, and what is known of the keys before.
pub(crate) struct Block {
    /// So many products, in whole [`SUMS`]; they become weights.
    pub(crate) scores: *mut f32,
    pub(crate) len: usize,
    /// So many of them, the first, are those of keys.
    pub(crate) keys: usize,
    /// How many of the keys the query sees, but for the mask.
    pub(crate) visible: usize,
    /// What products are multiplied with.
    pub(crate) factor: f32,
    /// `visible` elements of a row of `attn_mask`, or null.
    pub(crate) mask: *const u8,
    /// What the bias grows by from one key to the next, and how many keys behind the query's own the first is. Both are
    /// 0 without ALiBi.
    pub(crate) slope: f32,
    pub(crate) distance: f32,
    /// The largest score so far, and [`SUMS`] partial sums of weights.
    pub(crate) max: *mut f32,
    pub(crate) sums: *mut f32,
}

/// What came of a block.
pub(crate) struct Weights {
    /// What has been summed before is to be multiplied with it.
    pub(crate) rescale: f32,
    /// Whether there are keys among them that the query does not see. Their weight is [`HIDDEN`].
    pub(crate) hidden: bool,
}

/// Turns products into weights; the mask is of type T.
pub(crate) struct Softmax<T>(PhantomData<T>);

/// The numbers from 0 on.
const COUNT: [f32; MOST_LANES] = {
    let mut count = [0.0; MOST_LANES];
    let mut i = 0;
    while i < MOST_LANES {
        count[i] = i as f32;
        i += 1;
    }
    count
};

impl<T: Float> Function for Softmax<T> {
    type Arguments<'a> = Block;
    type Output = Weights;

    #[inline(always)]
    unsafe fn run<S: Simd>(block: &Block) -> Weights {
        let hidden = f32::NEG_INFINITY;
        // SAFETY: there are `len` scores, whole registers; `visible` elements of a mask; one maximum and SUMS sums.
        unsafe {
            let before = *block.max;
            let mut largest = S::splat(before);
            let mut unseen = 0;
            for at in (0..block.len).step_by(S::LANES) {
                let to = block.scores.add(at);
                let score = score::<S, T>(block, at, S::read_f32(to));
                unseen += S::count_equal(score, S::splat(hidden));
                largest = S::max(score, largest);
                S::write_f32(to, score);
            }
            let largest = horizontal_max::<S>(largest);
            // Nothing seen so far: any number will do, as all weights are 0, or NaN.
            let reference = if largest == hidden { 0.0 } else { largest };
            let mut rescale = 1.0;
            if largest != before {
                rescale = exp_of::<S>(before - reference);
                *block.max = largest;
                for i in (0..SUMS).step_by(S::LANES) {
                    let sums = block.sums.add(i);
                    S::write_f32(sums, S::mul(S::read_f32(sums), S::splat(rescale)));
                }
            }
            for at in (0..block.len).step_by(SUMS) {
                for i in (0..SUMS).step_by(S::LANES) {
                    let (scores, sums) = (block.scores.add(at + i), block.sums.add(i));
                    let score = S::read_f32(scores);
                    let weights = exp::<S>(S::sub(score, S::splat(reference)));
                    S::write_f32(scores, S::if_equal(score, S::splat(hidden), S::splat(HIDDEN), weights));
                    S::write_f32(sums, S::add(S::read_f32(sums), weights));
                }
            }
            Weights { rescale, hidden: unseen > block.len - block.keys }
        }
    }
}

/// The scores of a register of keys from `at` on: `product * factor + bias`; -inf where the query does not see the key.
#[inline(always)]
unsafe fn score<S: Simd, T: Float>(block: &Block, at: usize, product: S::F32) -> S::F32 {
    let hidden = f32::NEG_INFINITY;
    // SAFETY: the instruction set is enabled; of the mask only what is visible is read.
    unsafe {
        let mut score = S::mul(product, S::splat(block.factor));
        let numbers = S::read_f32(COUNT.as_ptr());
        let seen = block.visible.saturating_sub(at);
        if !block.mask.is_null() || block.slope != 0.0 {
            let mut bias = S::splat(0.0);
            if !block.mask.is_null() {
                let mask = block.mask.cast::<T>().wrapping_add(at);
                bias = match seen {
                    seen if seen >= S::LANES => T::read::<S>(mask),
                    seen => T::read_some::<S>(mask, seen),
                };
            }
            let distance = S::add(numbers, S::splat(block.distance + at as f32));
            bias = S::mul_add(S::splat(block.slope), distance, bias);
            score = S::if_equal(bias, S::splat(hidden), bias, S::mul_add(product, S::splat(block.factor), bias));
        }
        if seen < S::LANES {
            score = S::if_less(numbers, S::splat(seen as f32), score, S::splat(hidden));
        }
        score
    }
}

/// The largest lane.
#[inline(always)]
unsafe fn horizontal_max<S: Simd>(x: S::F32) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; MOST_LANES];
    // SAFETY: the array has a register's lanes.
    unsafe { S::write_f32(lanes.as_mut_ptr(), x) }
    // No lane is NaN.
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// [`exp`] of one number.
///
/// # Safety
/// The instruction set is enabled.
#[inline(always)]
pub(crate) unsafe fn exp_of<S: Simd>(x: f32) -> f32 {
    let mut lanes = [0.0; MOST_LANES];
    // SAFETY: the array has a register's lanes.
    unsafe { S::write_f32(lanes.as_mut_ptr(), exp::<S>(S::splat(x))) }
    lanes[0]
}
