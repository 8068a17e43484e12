//! Functions compiled by themselves with an instruction set enabled, so that they can be chosen by pointer.

use super::group::Groups;

/// A function over rows, written for any instruction set.
pub(crate) trait RowFunction {
    /// What it is given.
    type Rows;

    /// Does its work.
    ///
    /// # Safety
    /// The instruction set is enabled; else the function's own conditions.
    unsafe fn run<S: Groups>(rows: &Self::Rows);
}

/// An instruction set for which row functions are compiled.
pub(crate) trait Outline: Groups {
    /// Whether the instruction set has non-temporal stores. Where it has none nothing is called with `STREAM`.
    const STREAMS: bool = true;

    /// A row function as an outlined `#[target_feature]` function. To call it, the instruction set must be supported.
    fn outlined<F: RowFunction>() -> unsafe fn(&F::Rows);

    /// Orders non-temporal stores before whatever the thread writes next.
    fn fence();
}
