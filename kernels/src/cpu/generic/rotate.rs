//! Rotates heads of float32 (RoPE): plain Rust, compiled for every instruction set, since no sum may be fused with its
//! products and compilers vectorize these loops as they are.

use super::super::block::Heads;
use super::super::portable;
use super::group::Groups;
use super::outline::RowFunction;

/// Rotates heads.
pub(crate) struct RotateHeads;

impl RowFunction for RotateHeads {
    type Rows = Heads;

    #[inline(always)]
    unsafe fn run<S: Groups>(heads: &Heads) {
        // SAFETY: the same conditions.
        unsafe { portable::rotate(heads) }
    }
}
