//! The online softmax merge: sums over two splits of a sequence become the sums over both, and those over all splits
//! the output.

use std::marker::PhantomData;

use kvcache_simd::{Float, Function, hadamard_over};

use super::softmax::{SUMS, exp_of};
use super::tiles::Tiles;

/// The sums of one query over some keys.
#[derive(Clone, Copy)]
pub(crate) struct Accumulator {
    /// The largest score.
    pub(crate) max: *mut f32,
    /// [`SUMS`] partial sums of weights.
    pub(crate) weights: *mut f32,
    /// `width` sums of weighted values, whole registers.
    pub(crate) values: *mut f32,
    pub(crate) width: usize,
}

/// Merges the sums of one query over two splits, the second into the first.
pub(crate) struct Merge;

impl<S: Tiles> Function<S> for Merge {
    type Arguments<'a> = [Accumulator; 2];
    type Output = ();

    #[inline(always)]
    unsafe fn run(&[to, from]: &[Accumulator; 2]) {
        // SAFETY: both have a maximum, SUMS sums and `width` sums.
        unsafe {
            let maxima = [*to.max, *from.max];
            let largest = maxima[0].max(maxima[1]);
            let reference = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
            let factors = [S::splat(exp_of::<S>(maxima[0] - reference)), S::splat(exp_of::<S>(maxima[1] - reference))];
            *to.max = largest;
            for (to, from, len) in [(to.weights, from.weights, SUMS), (to.values, from.values, to.width)] {
                for i in (0..len).step_by(S::LANES) {
                    let first = S::mul(S::read_f32(to.add(i)), factors[0]);
                    S::write_f32(to.add(i), S::mul_add(S::read_f32(from.add(i)), factors[1], first));
                }
            }
        }
    }
}

/// The sums of a query over all keys, and the place of its output.
pub(crate) struct OutputRow {
    pub(crate) sums: Accumulator,
    /// `len` elements of T1.
    pub(crate) output: *mut u8,
    pub(crate) len: usize,
}

/// Divides sums by the sum of weights, which it gives, and writes them as T; zeros if there are no weights.
pub(crate) struct Finish<T>(PhantomData<T>);

impl<S: Tiles, T: Float> Function<S> for Finish<T> {
    type Arguments<'a> = OutputRow;
    type Output = f32;

    #[inline(always)]
    unsafe fn run(&OutputRow { sums, output, len }: &OutputRow) -> f32 {
        // SAFETY: there are SUMS and `width` sums, and `len` elements of the output.
        unsafe {
            let mut weights = *sums.weights.cast::<[f32; SUMS]>();
            let mut half = SUMS / 2;
            while half > 0 {
                for i in 0..half {
                    weights[i] += weights[half + i];
                }
                half /= 2;
            }
            // Without a weight all sums are zeros.
            let total = S::splat(if weights[0] == 0.0 { 1.0 } else { weights[0] });
            for i in (0..len).step_by(S::LANES) {
                // Zeros get one sign, and what is not a number one representation: neither has one of its own.
                let x = S::add(S::div(S::read_f32(sums.values.add(i)), total), S::splat(0.0));
                let x = S::if_equal(x, x, x, S::splat(f32::NAN));
                let to = output.cast::<T>().add(i);
                match len - i {
                    left if left >= S::LANES => T::write::<S, false>(to, x),
                    left => T::write_some::<S>(to, x, left),
                }
            }
            weights[0]
        }
    }
}

/// Some elements of a query, and their place as float32.
pub(crate) struct QueryElements {
    /// `len` elements of a float type.
    pub(crate) from: *const u8,
    pub(crate) len: usize,
    /// Whole registers.
    pub(crate) to: *mut f32,
    /// The order of the Hadamard matrix that they are multiplied by, as the keys are; 1 where these are not.
    pub(crate) order: usize,
}

/// Reads a row of T.
pub(crate) struct ReadQuery<T>(PhantomData<T>);

impl<S: Tiles, T: Float> Function<S> for ReadQuery<T> {
    type Arguments<'a> = QueryElements;
    type Output = ();

    #[inline(always)]
    unsafe fn run(&QueryElements { from, len, to, order }: &QueryElements) {
        for i in (0..len).step_by(S::LANES) {
            // SAFETY: `len` elements can be read, and whole registers be written.
            unsafe {
                let from = from.cast::<T>().add(i);
                let x = match len - i {
                    left if left >= S::LANES => T::read::<S>(from),
                    left => T::read_some::<S>(from, left),
                };
                S::write_f32(to.add(i), x);
            }
        }
        if order > 1 {
            // SAFETY: these elements have just been written.
            unsafe { hadamard_over::<S, f32>(to, to, len, order, None) }
        }
    }
}
