//! Functions compiled by themselves with an instruction set enabled, so that they can be chosen by pointer.

/// A function over the registers of an instruction set S.
pub trait Function<S> {
    /// Its arguments.
    type Arguments<'a>;

    /// Its result.
    type Output;

    /// Runs it.
    ///
    /// # Safety
    /// The instruction set is enabled; else the conditions of the arguments.
    unsafe fn run(arguments: &Self::Arguments<'_>) -> Self::Output;
}

/// A function compiled for an instruction set. To call it, this must be supported.
pub type Outlined<S, F> = for<'a> unsafe fn(&<F as Function<S>>::Arguments<'a>) -> <F as Function<S>>::Output;
