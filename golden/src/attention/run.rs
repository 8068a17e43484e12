//! Runs cases on an implementation.

use super::case::Case;
use super::compare::{self, Before};
use crate::implementation::Outcome;
use crate::run::{Report, first_difference, report};
use crate::tensor::Tensor;

/// An implementation of the operators.
pub trait Implementation {
    /// Makes the node of the case and runs its calls, one after the other on the same state; gives the result of each.
    ///
    /// # Errors
    /// A message, if the case could not be run; it then fails. A call that the operator refuses is not an error here
    /// but an [`Outcome::Refused`].
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String>;

    /// Why the implementation cannot run this case, if so; the case is then counted as skipped.
    fn cannot_run(&self, _case: &Case) -> Option<String> {
        None
    }
}

/// The result of a call.
#[derive(Debug, Clone)]
pub struct CallResult {
    /// Its `attn_output`, or its refusal.
    pub outcome: Outcome<Tensor>,
    /// `cache` after the call, if the operator has one.
    pub cache: Option<Tensor>,
    /// `scale` after the call, if given.
    pub scale: Option<Tensor>,
}

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
