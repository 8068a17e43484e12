//! The interface to an implementation under test, and the result of a call.

use kvcache_schema::Attributes;

use crate::case::{Case, Outputs, StepInputs};
use crate::tensor::Tensor;

/// An implementation of the operator whose cases have attributes `A` and inputs `I`.
pub trait Implementation<A = Attributes, I = StepInputs> {
    /// Makes the node of the case and runs its calls, one after the other on the same state; gives the result of each.
    ///
    /// # Errors
    /// A message, if the case could not be run; it then fails. A call that the operator refuses is not an error here
    /// but an [`Outcome::Refused`].
    fn run(&self, case: &Case<A, I>) -> Result<Vec<CallResult>, String>;

    /// Why the implementation cannot run this case, if so; the case is then counted as skipped.
    fn cannot_run(&self, _case: &Case<A, I>) -> Option<String> {
        None
    }
}

/// The result of a call.
#[derive(Debug, Clone)]
pub struct CallResult {
    /// Its outputs, or its refusal.
    pub outcome: Outcome,
    /// `cache` after the call.
    pub cache: Tensor,
    /// `scale` after the call, if given.
    pub scale: Option<Tensor>,
}

/// How a call ended; `O` is what it gives.
#[derive(Debug, Clone)]
pub enum Outcome<O = Outputs> {
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
