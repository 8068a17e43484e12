//! What an implementation made of a call.

use crate::tensor::Tensor;

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
