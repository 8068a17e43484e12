//! Rotates heads of float32 (RoPE): plain Rust, compiled for every instruction set, since no sum may be fused with its
//! products and compilers vectorize these loops as they are.

use kvcache_simd::Function;

use super::super::block::Heads;
use super::super::portable;

/// Rotates heads.
pub(crate) struct RotateHeads;

impl<S> Function<S> for RotateHeads {
    type Arguments<'a> = Heads;
    type Output = ();

    #[inline(always)]
    unsafe fn run(heads: &Heads) {
        // SAFETY: the heads are valid: RotateFunction's condition.
        unsafe { portable::rotate(heads) }
    }
}
