//! Runs cases on an implementation.

use super::case::Case;
use super::compare::{self, Before};
use super::implementation::Implementation;
use crate::run::{Report, first_difference, report};

/// Runs the cases on an implementation.
pub fn run(implementation: &dyn Implementation, cases: &[Case]) -> Report {
    report(
        cases,
        |case| (&case.name, &case.about),
        |case| implementation.cannot_run(case),
        |case| {
            first_difference(implementation.run(case), &case.steps, |step, previous, result| {
                let before = match previous {
                    None => Before { cache: case.cache.as_ref(), scale: case.scale.as_ref() },
                    Some(previous) => Before { cache: previous.cache.as_ref(), scale: previous.scale.as_ref() },
                };
                compare::difference(&step.expected, result, &before, case.t1)
            })
        },
    )
}
