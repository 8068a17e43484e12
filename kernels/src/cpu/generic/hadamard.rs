//! Rows times a Hadamard matrix over vector registers.

use std::marker::PhantomData;

use kvcache_simd::{Float, Function, Simd, hadamard_over};

use super::super::block::Blocks;

/// Multiplies the heads of rows of values V.
pub(crate) struct Hadamard<V>(PhantomData<V>);

impl<S: Simd, V: Float> Function<S> for Hadamard<V> {
    type Arguments<'a> = Blocks;
    type Output = ();

    #[inline(always)]
    unsafe fn run(blocks: &Blocks) {
        for r in 0..blocks.count {
            let (from, to) = (blocks.from.row(r).cast_const().cast::<V>(), blocks.to.row(r).cast());
            let ahead = blocks.prefetch.map(|prefetch| from.wrapping_byte_offset(prefetch));
            // SAFETY: r < count, so these rows are valid: HadamardFunction's condition.
            unsafe { hadamard_over::<S, V>(from, to, blocks.len, blocks.order, ahead) }
        }
    }
}
