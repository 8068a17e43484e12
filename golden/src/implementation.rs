//! Plays cases against an implementation.

use std::fmt;

use crate::case::{Case, Outputs};
use crate::compare::{self, Before};
use crate::tensor::Tensor;

/// An implementation of the operator.
pub trait Implementation {
    /// Makes the node of the case and its calls, one after the other on the same state, and tells what each did.
    ///
    /// # Errors
    /// In words, if the case could not be played at all; this counts as a failure. A call that the operator refuses is not
    /// an error here but an [`Outcome::Refused`].
    fn play(&self, case: &Case) -> Result<Vec<Played>, String>;

    /// Why the implementation cannot play this case, if so; the case is then counted as skipped.
    fn cannot_play(&self, _case: &Case) -> Option<String> {
        None
    }
}

/// What a call did.
#[derive(Debug, Clone)]
pub struct Played {
    /// Its outputs, or its refusal.
    pub outcome: Outcome,
    /// `cache` after the call.
    pub cache: Tensor,
    /// `scale` after the call, if given.
    pub scale: Option<Tensor>,
}

/// How a call ended.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// It gave these outputs.
    Done(Outputs),
    /// It was refused.
    Refused {
        /// The kind of error; `None` if the implementation only has words.
        kind: Option<String>,
        /// What a user would read.
        message: String,
    },
}

impl Outcome {
    /// A refusal of an implementation that has no kinds of errors.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::Refused { kind: None, message: message.into() }
    }
}

/// What came of playing some cases. Displayed, it is a line for each failure and a closing count.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// How many cases passed.
    pub passed: usize,
    /// What went wrong, one entry for a case.
    pub failures: Vec<Failure>,
    /// The names of the cases that could not be played, with the reasons.
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

/// Plays the cases against an implementation.
pub fn play(implementation: &dyn Implementation, cases: &[Case]) -> Report {
    let mut report = Report::default();
    for case in cases {
        if let Some(reason) = implementation.cannot_play(case) {
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

/// The first difference between what the implementation does and what the case asks for.
fn difference(implementation: &dyn Implementation, case: &Case) -> Option<String> {
    let played = match implementation.play(case) {
        Ok(played) => played,
        Err(problem) => return Some(problem),
    };
    if played.len() != case.steps.len() {
        return Some(format!("{} calls were played, wanted {}", played.len(), case.steps.len()));
    }
    let mut before = Before { cache: &case.cache, scale: case.scale.as_ref() };
    for (i, (step, played)) in case.steps.iter().zip(&played).enumerate() {
        if let Some(difference) = compare::difference(&step.expected, played, &before, case.nan) {
            return Some(format!("call {i}: {difference}"));
        }
        before = Before { cache: &played.cache, scale: played.scale.as_ref() };
    }
    None
}
