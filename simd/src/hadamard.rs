//! Blocks of numbers times the normalized Hadamard matrix of Sylvester, whose order is a power of two.
//!
//! ```text
//! for each block of `order` float32
//!     for distance in 1, 2, 4, ..., order / 2
//!         for each two elements a and b of this distance, a first: (a, b) = (a + b, a - b)
//!     each element *= the float32 nearest order^-1/2
//! ```
//!
//! A lane's sum or difference is rounded once, whether one instruction makes it or several, so all instruction sets
//! give the same bits.

use crate::float::Float;
use crate::prefetch::LINE;
use crate::simd::{MOST_LANES, Simd};

/// The float32 nearest `order^-1/2`.
fn factor(order: usize) -> f32 {
    (1.0 / (order as f64).sqrt()) as f32
}

/// Multiplies whole blocks, number by number; nothing where the order is 1.
pub fn hadamard(values: &mut [f32], order: usize) {
    if order == 1 {
        return;
    }
    for block in values.chunks_exact_mut(order) {
        let mut distance = 1;
        while distance < order {
            for pairs in block.chunks_exact_mut(2 * distance) {
                let (first, second) = pairs.split_at_mut(distance);
                for (a, b) in first.iter_mut().zip(second) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            distance *= 2;
        }
        block.iter_mut().for_each(|x| *x *= factor(order));
    }
}

/// Multiplies the whole blocks of `len` values, each rounded at the end, over registers. `order` is at most 256.
/// Prefetches as many values at `ahead`.
///
/// # Safety
/// The conditions of [`Simd`]. `from` is valid for reads of the values, `to` for writes; they are one place, or
/// do not overlap.
#[inline(always)]
pub unsafe fn hadamard_over<S: Simd, V: Float>(
    from: *const V,
    to: *mut V,
    len: usize,
    order: usize,
    ahead: Option<*const V>,
) {
    // SAFETY: this function's conditions; a block is as many registers, or is shorter than one.
    unsafe {
        match order / S::LANES {
            0 | 1 => multiply::<S, V, 1, 8>(from, to, len, order, ahead),
            2 => multiply::<S, V, 2, 8>(from, to, len, order, ahead),
            4 => multiply::<S, V, 4, 8>(from, to, len, order, ahead),
            8 => multiply::<S, V, 8, 8>(from, to, len, order, ahead),
            32 if S::LANES < MOST_LANES => multiply::<S, V, 32, 32>(from, to, len, order, ahead),
            _ => multiply::<S, V, 16, 16>(from, to, len, order, ahead),
        }
    }
}

/// Multiplies blocks of `REGISTERS` registers, or of less than one: `AT_ONCE` registers together, stage by stage, since
/// the stages of one block wait for each other, and processors look no further ahead than about a block.
///
/// # Safety
/// The conditions of [`hadamard_over`].
#[inline(always)]
unsafe fn multiply<S: Simd, V: Float, const REGISTERS: usize, const AT_ONCE: usize>(
    from: *const V,
    to: *mut V,
    len: usize,
    order: usize,
    ahead: Option<*const V>,
) {
    // The compiler is to know it.
    let order = if REGISTERS > 1 { REGISTERS * S::LANES } else { order };
    let factor = factor(order);
    let ahead = |i| ahead.map(|ahead| ahead.wrapping_add(i));
    let mut i = 0;
    // SAFETY: the registers end at `len` at most in both loops; after them `len - i` values are left, less than a
    // register, because a block of more registers divides `len`.
    unsafe {
        while i + AT_ONCE * S::LANES <= len {
            multiply_registers::<S, V, AT_ONCE>(from.add(i), to.add(i), order, factor, ahead(i));
            i += AT_ONCE * S::LANES;
        }
        while i + REGISTERS * S::LANES <= len {
            multiply_registers::<S, V, REGISTERS>(from.add(i), to.add(i), order, factor, ahead(i));
            i += REGISTERS * S::LANES;
        }
        if i < len {
            let mut x = [V::read_some::<S>(from.add(i), len - i)];
            butterflies::<S>(&mut x, order);
            V::write_some::<S>(to.add(i), S::mul(x[0], S::splat(factor)), len - i);
        }
    }
}

/// Multiplies the whole blocks of `N` registers.
///
/// # Safety
/// The conditions of [`hadamard_over`].
#[inline(always)]
unsafe fn multiply_registers<S: Simd, V: Float, const N: usize>(
    from: *const V,
    to: *mut V,
    order: usize,
    factor: f32,
    ahead: Option<*const V>,
) {
    if let Some(ahead) = ahead {
        let bytes = N * S::LANES * size_of::<V>();
        (0..bytes).step_by(LINE).for_each(|i| S::prefetch(ahead.cast::<u8>().wrapping_add(i)));
    }
    // SAFETY: k < N, and the registers are there: this function's condition.
    unsafe {
        let mut x = [S::splat(factor); N];
        for first in (0..N).step_by(8) {
            let some = &mut x[first..N.min(first + 8)];
            for (k, x) in some.iter_mut().enumerate() {
                *x = V::read::<S>(from.add((first + k) * S::LANES));
            }
            butterflies::<S>(some, order);
        }
        let mut distance = 1;
        while distance < order / S::LANES {
            for k in 0..N {
                if k & distance == 0 {
                    let (a, b) = (x[k], x[k + distance]);
                    (x[k], x[k + distance]) = (S::add(a, b), S::sub(a, b));
                }
            }
            distance *= 2;
        }
        for (k, x) in x.into_iter().enumerate() {
            V::write::<S, false>(to.add(k * S::LANES), S::mul(x, S::splat(factor)));
        }
    }
}

/// The stages whose distances are less than a register, below `order`.
///
/// # Safety
/// The instruction set is enabled.
#[inline(always)]
unsafe fn butterflies<S: Simd>(x: &mut [S::F32], order: usize) {
    // SAFETY: the instruction set is enabled.
    unsafe {
        if order > 1 {
            butterfly::<S, 1>(x);
        }
        if order > 2 {
            butterfly::<S, 2>(x);
        }
        if order > 4 {
            butterfly::<S, 4>(x);
        }
        if order > 8 && S::LANES > 8 {
            butterfly::<S, 8>(x);
        }
    }
}

/// One stage: the product with 1 or -1 is exact, so the sum is rounded once, fused or not.
///
/// # Safety
/// The instruction set is enabled.
#[inline(always)]
unsafe fn butterfly<S: Simd, const DISTANCE: usize>(x: &mut [S::F32]) {
    // SAFETY: the instruction set is enabled, and the array has a register.
    unsafe {
        let signs = S::read_f32(const { &signs(DISTANCE) }.as_ptr());
        for x in x {
            *x = S::mul_add(*x, signs, S::swap::<DISTANCE>(*x));
        }
    }
}

/// -1 for lanes that are the second of their two.
const fn signs(distance: usize) -> [f32; MOST_LANES] {
    let mut signs = [1.0; MOST_LANES];
    let mut lane = 0;
    while lane < MOST_LANES {
        if lane & distance != 0 {
            signs[lane] = -1.0;
        }
        lane += 1;
    }
    signs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The product with the matrix of Sylvester, whose entry (i, j) is negative where i and j share an odd number of
    /// bits.
    #[test]
    fn blocks_are_multiplied_by_the_matrix() {
        for order in (0..9).map(|exponent| 1 << exponent) {
            let values: Vec<f32> = (0..3 * order).map(|i| ((i * 37 + i / 5) % 101) as f32 - 50.0).collect();
            let mut got = values.clone();
            hadamard(&mut got, order);
            for (i, &got) in got.iter().enumerate() {
                let block = &values[i / order * order..][..order];
                let sum: f32 = (0..order)
                    .map(|j| if ((i % order) & j).count_ones() % 2 == 1 { -block[j] } else { block[j] })
                    .sum();
                assert_eq!(got, sum * (1.0 / (order as f64).sqrt()) as f32, "element {i}, order {order}");
            }
        }
    }
}
