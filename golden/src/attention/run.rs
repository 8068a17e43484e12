//! Runs cases on an implementation.

use super::case::Case;
use super::implementation::Implementation;
use crate::report::Report;
use crate::run::report;

/// Runs the cases on an implementation.
pub fn run(implementation: &dyn Implementation, cases: &[Case]) -> Report {
    report(cases, |case| implementation.cannot_run(case), |case| implementation.run(case))
}
