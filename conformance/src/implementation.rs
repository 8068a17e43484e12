//! The interface to an implementation under test.

use crate::case::Case;
use crate::result::CallResult;
use crate::suite::Suite;

/// An implementation of the operators of a suite, whose cases are `C`.
pub trait Implementation<C: Suite = Case> {
    /// Makes the node of the case and runs its calls, one after the other on the same state; gives the result of each.
    ///
    /// # Errors
    /// A message, if the case could not be run; it then fails. A call that the operator refuses is not an error here
    /// but an [`Outcome::Refused`](crate::Outcome::Refused).
    fn run(&self, case: &C) -> Result<Vec<CallResult>, String>;

    /// Why the implementation cannot run this case, if so; the case is then counted as skipped.
    fn cannot_run(&self, _case: &C) -> Option<String> {
        None
    }
}
