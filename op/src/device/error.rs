//! Why a call was not launched.

use kvcache_kernels::cuda::{Error as LaunchError, TooLarge};
use thiserror::Error;

/// Why a call on a device was not launched.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what the fields are")]
pub enum Error {
    /// A rule of the operator is broken.
    #[error(transparent)]
    Operator(#[from] crate::Error),

    /// The device or its driver cannot run the call.
    #[error(transparent)]
    Launch(#[from] LaunchError),

    /// A slice that was made for another stream than the call's.
    #[error("{input} was made for another stream than that of the launch")]
    OtherStream { input: &'static str },

    /// Scratch memory that is too small, or not aligned to 4 bytes.
    #[error("scratch has {got} bytes, expected at least {expected}, aligned to 4")]
    Scratch { got: usize, expected: usize },

    /// A slice of another context than the stream's.
    #[error("{input} is in memory of another context than the stream's")]
    OtherContext { input: &'static str },
}

impl From<TooLarge> for Error {
    fn from(error: TooLarge) -> Self {
        Self::Launch(error.into())
    }
}

impl Error {
    /// A stable name of the rule that is broken, or of what is wrong with the machine.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Operator(error) => error.kind(),
            Self::Launch(error) => error.kind(),
            Self::Scratch { .. } => "scratch",
            Self::OtherStream { .. } => "other_stream",
            Self::OtherContext { .. } => "other_cuda_context",
        }
    }
}
