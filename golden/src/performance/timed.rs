//! An implementation that can be timed.

use super::rounds::{Plan, Rounds};
use crate::case::Case;
use crate::implementation::{CallResult, Implementation};

/// An implementation whose calls can be made again and again without anything between them: in this process, or in one
/// that serves many calls. A program that is started for each case cannot be timed so; its start would be measured.
pub trait Timed: Implementation {
    /// Makes the node of a case of one call, makes the call again and again as [`interleaved`](super::interleaved) does
    /// with this plan, and gives the times with the result of the last call.
    ///
    /// # Errors
    /// A message, if the call could not be made.
    fn time(&self, case: &Case, plan: Plan) -> Result<(Rounds, CallResult), String>;
}
