//! The interface to an implementation under test, and the result of a call.

use super::case::Case;
use crate::implementation::Outcome;
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
