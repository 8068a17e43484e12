//! The interface to an implementation under test, and what it makes of a call.

use crate::case::Case;
use crate::suite::Suite;
use crate::tensor::Tensor;

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

/// What is demanded of an implementation that runs a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// What the case says.
    AsExpected,
    /// To refuse every call, with whatever error, and to leave the state as it was: it does not do what the case needs.
    Refusal,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallResult {
    /// Its outputs, or its refusal.
    pub outcome: Outcome,
    /// `cache` after the call, if the operator has one.
    pub cache: Option<Tensor>,
    /// `scale` after the call, if given.
    pub scale: Option<Tensor>,
}

/// How a call ended; `O` is what it gives: the outputs, by position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<O = Vec<Tensor>> {
    /// It gave these outputs.
    Done(O),
    /// It was refused.
    Refused {
        /// The kind of error; `None` if the implementation has messages only.
        kind: Option<String>,
        /// The error message.
        message: String,
    },
}

impl<O> Outcome<O> {
    /// A refusal of an implementation that has no kinds of errors.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::Refused { kind: None, message: message.into() }
    }

    /// The same outcome with what is made of the outputs.
    pub fn map<P>(self, outputs: impl FnOnce(O) -> P) -> Outcome<P> {
        match self {
            Self::Done(given) => Outcome::Done(outputs(given)),
            Self::Refused { kind, message } => Outcome::Refused { kind, message },
        }
    }
}
