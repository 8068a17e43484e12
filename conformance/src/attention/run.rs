//! Runs cases on an implementation.

use super::case::Case;
use super::implementation::Implementation;
use crate::report::Report;
use crate::run::Runner;

/// Runs the cases on an implementation.
pub fn run(implementation: &dyn Implementation, cases: &[Case]) -> Report {
    Runner::default().report(cases, |case| implementation.cannot_run(case), |case| implementation.run(case))
}

impl Runner<'_> {
    /// Runs cases of the attention operators on an implementation that several threads may use at once.
    pub fn run_attention(&self, implementation: &(dyn Implementation + Sync), cases: &[Case]) -> Report {
        self.parallel_report(cases, |case| implementation.cannot_run(case), |case| implementation.run(case))
    }
}
