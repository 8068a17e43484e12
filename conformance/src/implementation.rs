//! The interface to an implementation under test.

use crate::case::Case;
use crate::tensor::Tensor;

/// An implementation of some of the operators.
pub trait Implementation: Sync {
    /// Makes the node of the case and runs its calls, one after the other on the same state; returns the result of
    /// each.
    ///
    /// # Errors
    /// A message, if the case could not be run; it then fails. A call that the operator refuses is not an error here
    /// but an [`Outcome::Refused`], and a case of what the implementation does not do has [`CallResult::unsupported`]
    /// for its only result, or for its last one: the calls before it are compared.
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String>;
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

impl CallResult {
    /// What an implementation gives that does not do what the case needs, for a reason.
    pub fn unsupported(reason: impl Into<String>) -> Self {
        Self { outcome: Outcome::Unsupported(reason.into()), cache: None, scale: None }
    }
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It gave these outputs, by position.
    Done(Vec<Tensor>),
    /// It was refused.
    Refused {
        /// The kind of error; `None` if the implementation has messages only.
        kind: Option<String>,
        /// The error message.
        message: String,
    },
    /// The implementation does not do this, for a reason: the case is not counted.
    Unsupported(String),
}

impl Outcome {
    /// A refusal of an implementation that has no kinds of errors.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::Refused { kind: None, message: message.into() }
    }
}
