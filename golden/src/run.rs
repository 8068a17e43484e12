//! Runs cases on an implementation, and counts what passes and what fails.

use std::fmt;

use crate::case::Case;
use crate::compare::{self, Before};
use crate::implementation::Implementation;

/// The result of running some cases. Displayed, it is a line for each failure and a closing count.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// How many cases passed.
    pub passed: usize,
    /// What went wrong, one entry for a case.
    pub failures: Vec<Failure>,
    /// The names of the cases that were skipped, with the reasons.
    pub skipped: Vec<(String, String)>,
}

/// What went wrong in a case.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The case's name.
    pub case: String,
    /// What the case is about.
    pub about: String,
    /// The first difference.
    pub difference: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Failure { case, difference, about } in &self.failures {
            writeln!(f, "FAILED {case}: {difference} ({about})")?;
        }
        for (case, reason) in &self.skipped {
            writeln!(f, "skipped {case}: {reason}")?;
        }
        write!(f, "{} passed, {} failed", self.passed, self.failures.len())?;
        match self.skipped.len() {
            0 => Ok(()),
            skipped => write!(f, ", {skipped} skipped"),
        }
    }
}

/// Runs the cases on an implementation.
pub fn run(implementation: &dyn Implementation, cases: &[Case]) -> Report {
    let mut report = Report::default();
    for case in cases {
        if let Some(reason) = implementation.cannot_run(case) {
            report.skipped.push((case.name.clone(), reason));
            continue;
        }
        match difference(implementation, case) {
            None => report.passed += 1,
            Some(difference) => {
                report.failures.push(Failure { case: case.name.clone(), about: case.about.clone(), difference });
            }
        }
    }
    report
}

/// The first difference between the implementation's results and the expected ones.
fn difference(implementation: &dyn Implementation, case: &Case) -> Option<String> {
    let results = match implementation.run(case) {
        Ok(results) => results,
        Err(problem) => return Some(problem),
    };
    if results.len() != case.steps.len() {
        return Some(format!("got {} calls, expected {}", results.len(), case.steps.len()));
    }
    let mut before = Before { cache: &case.cache, scale: case.scale.as_ref() };
    for (i, (step, result)) in case.steps.iter().zip(&results).enumerate() {
        if let Some(difference) = compare::difference(&step.expected, result, &before, case.nan) {
            return Some(format!("call {i}: {difference}"));
        }
        before = Before { cache: &result.cache, scale: result.scale.as_ref() };
    }
    None
}
