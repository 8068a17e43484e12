//! Functions compiled by themselves with an instruction set enabled, so that they can be chosen by pointer.

use super::simd::Simd;

/// A function written for any instruction set.
pub(crate) trait Function {
    /// What it is given.
    type Arguments<'a>;

    /// What it tells.
    type Output;

    /// Does its work.
    ///
    /// # Safety
    /// The instruction set is enabled; else the conditions of the arguments.
    unsafe fn run<S: Simd>(arguments: &Self::Arguments<'_>) -> Self::Output;
}

/// A function for one instruction set. To call it, this must be supported.
pub(crate) type Outlined<F> = for<'a> unsafe fn(&<F as Function>::Arguments<'a>) -> <F as Function>::Output;

/// An instruction set for which functions are compiled.
pub(crate) trait Outline: Simd {
    /// An outlined `#[target_feature]` function.
    fn outlined<F: Function>() -> Outlined<F>;
}
