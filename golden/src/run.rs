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
pub fn run<A, I>(implementation: &dyn Implementation<A, I>, cases: &[Case<A, I>]) -> Report {
    report(
        cases,
        |case| (&case.name, &case.about),
        |case| implementation.cannot_run(case),
        |case| {
            first_difference(implementation.run(case), &case.steps, |step, previous, result| {
                let before = match previous {
                    None => Before { cache: &case.cache, scale: case.scale.as_ref() },
                    Some(previous) => Before { cache: &previous.cache, scale: previous.scale.as_ref() },
                };
                compare::difference(&step.expected, result, &before, case.nan)
            })
        },
    )
}

/// What becomes of cases of any operator: each has a name and what it is about, may be skipped for a reason, and else
/// passes if it has no difference.
pub(crate) fn report<C>(
    cases: &[C],
    name_and_about: impl Fn(&C) -> (&String, &String),
    cannot_run: impl Fn(&C) -> Option<String>,
    difference: impl Fn(&C) -> Option<String>,
) -> Report {
    let mut report = Report::default();
    for case in cases {
        let (name, about) = name_and_about(case);
        if let Some(reason) = cannot_run(case) {
            report.skipped.push((name.clone(), reason));
            continue;
        }
        match difference(case) {
            None => report.passed += 1,
            Some(difference) => {
                report.failures.push(Failure { case: name.clone(), about: about.clone(), difference });
            }
        }
    }
    report
}

/// The first difference between the results of a case's calls and what the calls must do. `difference` compares one
/// call with its result, and has the result of the call before.
pub(crate) fn first_difference<S, R>(
    results: Result<Vec<R>, String>,
    steps: &[S],
    difference: impl Fn(&S, Option<&R>, &R) -> Option<String>,
) -> Option<String> {
    let results = match results {
        Ok(results) => results,
        Err(problem) => return Some(problem),
    };
    if results.len() != steps.len() {
        return Some(format!("got {} calls, expected {}", results.len(), steps.len()));
    }
    let mut calls = steps.iter().zip(&results).enumerate();
    calls.find_map(|(i, (step, result))| {
        let previous = i.checked_sub(1).map(|i| &results[i]);
        Some(format!("call {i}: {}", difference(step, previous, result)?))
    })
}
