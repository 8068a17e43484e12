//! The weights of a block of keys, from their products with queries.

use std::marker::PhantomData;
use std::ops::Range;

use kvcache_simd::{Float, Function, MOST_LANES};

use super::exp::exp;
use super::rows::BLOCK;
use super::tiles::Tiles;

/// Partial sums of weights: the weight of key t is added to partial sum `t % SUMS`.
pub(crate) const SUMS: usize = 16;

/// The weight of a key that the query does not see: -0. A seen key's is +0 where it underflows.
pub(crate) const MASKED: f32 = -0.0;

/// A query row, and what it sees of its sequence.
#[derive(Clone, Copy)]
pub(crate) struct QueryRow {
    /// The number of keys that it sees, the first ones, but for the window and the mask.
    pub(crate) visible: usize,
    /// The number of keys, the first ones, that the window hides; less than `visible`, unless both are 0.
    pub(crate) hidden: usize,
    /// Its row of `attn_mask` from the sequence's first column on, with an element for each visible key; or null.
    pub(crate) mask: *const u8,
    /// ALiBi's slope, and the key at whose distance the bias is 0; the slope is 0 without.
    pub(crate) slope: f32,
    pub(crate) position: i64,
    /// The sink of its head; -inf without.
    pub(crate) sink: f32,
    /// Its elements of `query` and `attn_output`, in bytes.
    pub(crate) at: usize,
}

/// The products of some queries with the keys of a block, and what is known of the keys before.
pub(crate) struct ScoreBlock<'a> {
    pub(crate) rows: &'a [QueryRow],
    /// The block's keys.
    pub(crate) keys: Range<usize>,
    /// For each row as many products, rounded up to whole [`SUMS`], one row each [`BLOCK`]; they become weights.
    pub(crate) scores: *mut f32,
    /// The factor of products.
    pub(crate) factor: f32,
    /// For each row the largest score so far, and [`SUMS`] partial sums of weights.
    pub(crate) max: *mut f32,
    pub(crate) sums: *mut f32,
    /// For each row what has been summed before is to be multiplied with.
    pub(crate) rescale: *mut f32,
}

/// Turns products into weights; the mask is of type T.
pub(crate) struct Softmax<T>(PhantomData<T>);

/// Rows whose weights are computed at once: each instruction waits for the one before it.
const AT_ONCE: usize = 4;

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

/// Whether there are [`MASKED`] weights.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Masked {
    /// Some row's weight of some key of the block.
    pub(crate) any: bool,
    /// Some row's weight of a key that the row sees but for the window and the mask: it is masked, or its score is -inf
    /// by itself.
    pub(crate) among_visible: bool,
}

impl Masked {
    fn add(&mut self, Self { any, among_visible }: Self) {
        *self = Self { any: self.any | any, among_visible: self.among_visible | among_visible };
    }
}

impl<S: Tiles, T: Float> Function<S> for Softmax<T> {
    type Arguments<'a> = ScoreBlock<'a>;
    type Output = Masked;

    #[inline(always)]
    unsafe fn run(block: &ScoreBlock<'_>) -> Masked {
        // SAFETY: the rows are the block's.
        unsafe {
            match block.rows.iter().any(|row| row.hidden > block.keys.start) {
                false => all_rows::<S, T, false>(block),
                true => all_rows::<S, T, true>(block),
            }
        }
    }
}

/// All rows, of which a window hides keys of the block from some, if there is a WINDOW.
#[inline(always)]
unsafe fn all_rows<S: Tiles, T: Float, const WINDOW: bool>(block: &ScoreBlock<'_>) -> Masked {
    let mut masked = Masked::default();
    let mut first = 0;
    // SAFETY: the block has the rows from `first` on.
    unsafe {
        while block.rows.len() - first >= AT_ONCE {
            masked.add(rows::<S, T, AT_ONCE, WINDOW>(block, first));
            first += AT_ONCE;
        }
        for r in first..block.rows.len() {
            masked.add(rows::<S, T, 1, WINDOW>(block, r));
        }
    }
    masked
}

/// R rows from `first` on.
#[inline(always)]
unsafe fn rows<S: Tiles, T: Float, const R: usize, const WINDOW: bool>(block: &ScoreBlock<'_>, first: usize) -> Masked {
    let masked = f32::NEG_INFINITY;
    let (keys, len) = (block.keys.len(), block.keys.len().next_multiple_of(SUMS));
    let rows = &block.rows[first..][..R];
    let visible: [usize; R] = std::array::from_fn(|r| rows[r].visible.saturating_sub(block.keys.start).min(keys));
    // SAFETY: each row has `len` scores, one maximum and SUMS sums.
    unsafe {
        let (scores, sums) = (block.scores.add(first * BLOCK), block.sums.add(first * SUMS));
        let (mut unseen, mut reference, mut changes) = ([0; R], [0.0; R], [0.0; MOST_LANES]);
        for (r, row) in rows.iter().enumerate() {
            let scores = scores.add(r * BLOCK);
            let biased = !row.mask.is_null() || row.slope != 0.0;
            let before = *block.max.add(first + r);
            let mut largest = S::splat(before);
            for at in (0..len).step_by(S::LANES) {
                let product = S::read_f32(scores.add(at));
                let mut score = S::mul(product, S::splat(block.factor));
                if biased {
                    score = biased_score::<S, T>(block, row, at, visible[r], product);
                }
                if visible[r] < at + S::LANES {
                    let seen = S::splat(visible[r].saturating_sub(at) as f32);
                    score = S::if_less(S::read_f32(COUNT.as_ptr()), seen, score, S::splat(masked));
                }
                if WINDOW {
                    let hidden = S::splat(row.hidden.saturating_sub(block.keys.start + at) as f32);
                    score = S::if_less(S::read_f32(COUNT.as_ptr()), hidden, S::splat(masked), score);
                }
                unseen[r] += S::count_equal(score, S::splat(masked));
                largest = S::max(score, largest);
                S::write_f32(scores.add(at), score);
            }
            let largest = S::max_lane(largest);
            // Nothing seen so far: any number will do, as all weights are 0, or NaN.
            reference[r] = if largest == masked { 0.0 } else { largest };
            changes[r] = if largest == before { 0.0 } else { before - reference[r] };
            *block.max.add(first + r) = largest;
        }
        // Of all rows at once.
        let mut rescale = [0.0; MOST_LANES];
        S::write_f32(rescale.as_mut_ptr(), exp::<S>(S::read_f32(changes.as_ptr())));
        block.rescale.add(first).copy_from_nonoverlapping(rescale.as_ptr(), R);
        for i in (0..SUMS).step_by(S::LANES) {
            let mut sum = [S::splat(0.0); R];
            for (r, sum) in sum.iter_mut().enumerate() {
                *sum = S::mul(S::read_f32(sums.add(r * SUMS + i)), S::splat(rescale[r]));
            }
            for at in (i..len).step_by(SUMS) {
                for (r, sum) in sum.iter_mut().enumerate() {
                    let to = scores.add(r * BLOCK + at);
                    let score = S::read_f32(to);
                    let weight = exp::<S>(S::sub(score, S::splat(reference[r])));
                    let weight = S::if_equal(score, S::splat(masked), S::splat(MASKED), weight);
                    S::write_f32(to, weight);
                    *sum = S::add(*sum, weight);
                }
            }
            for (r, sum) in sum.iter().enumerate() {
                S::write_f32(sums.add(r * SUMS + i), *sum);
            }
        }
        let mut masked = Masked::default();
        for r in 0..R {
            masked.add(Masked { any: unseen[r] > len - keys, among_visible: unseen[r] > len - visible[r] });
        }
        masked
    }
}

/// The scores of a register of keys from `at` on: `product * factor + bias`, and -inf where the bias is. The keys from
/// `visible` on have any.
#[inline(always)]
unsafe fn biased_score<S: Tiles, T: Float>(
    block: &ScoreBlock<'_>,
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
