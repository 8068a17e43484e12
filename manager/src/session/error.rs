//! Why a session is refused.

use std::fmt::Display;

use serde::Serialize;
use strum::IntoStaticStr;
use thiserror::Error;

use crate::error::text;

/// A session file that was not written, or was not taken. Neither the manager's sequences nor live rows have changed.
///
/// [`SessionError::kind`] is a stable name for programs.
#[derive(Debug, Error, IntoStaticStr, Serialize)]
#[strum(serialize_all = "snake_case")]
#[serde(untagged)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what the fields are")]
pub enum SessionError {
    /// The file system failed.
    #[error("cannot {action}: {source}")]
    Io {
        action: &'static str,
        #[serde(serialize_with = "text")]
        source: std::io::Error,
    },

    /// A file that is no session, or one of another version; a damaged file; rows of another cache or of another model.
    /// `kind` is `format`, `version`, `digest`, `metadata`, `tensor`, `dimensions`, `types`, `quantization`,
    /// `key_form`, `rope` or `fingerprint`.
    #[error("{what} is {got}, expected {expected}")]
    Mismatch {
        #[serde(skip)]
        kind: &'static str,
        what: String,
        expected: String,
        got: String,
    },

    /// A file that no manager has written. `kind` is `truncated`, `trailing`, `header_length`, `header`,
    /// `missing_tensor`, `unknown_tensor`, `known_tokens`, `row_index`, `position_range`, `position_order` or
    /// `row_tokens`.
    #[error("{reason}")]
    Malformed {
        #[serde(skip)]
        kind: &'static str,
        reason: String,
    },

    /// A sequence whose first pages a window has freed: a session needs all rows.
    #[error("a window has freed the pages of the first {rows} rows of a sequence, expected none")]
    PassedRows { rows: usize },

    /// A sequence that was removed from or shifted while it was saved.
    #[error("the sequence has changed while it was saved, expected the same rows and positions")]
    Changed,

    /// A sequence that the file does not have.
    #[error("there is no sequence {index}: the file has {sequences}")]
    NoSequence { index: usize, sequences: usize },

    /// All sequences of a session that are to be loaded beside others.
    #[error("the manager has {sequences} sequences, expected none")]
    NotEmpty { sequences: usize },

    /// A sequence that would need more pages than a row of `cachestarts` has.
    #[error("sequence {sequence} has {rows} rows, which are {need} pages of {page_size}, expected at most {max_pages}")]
    TooManyPages { sequence: usize, rows: usize, page_size: usize, need: usize, max_pages: usize },

    /// A cache without room for the session.
    #[error("the session needs {need} slots, {free} are free")]
    NoRoom { need: usize, free: usize },
}

impl SessionError {
    pub(crate) fn mismatch(
        kind: &'static str,
        what: impl Into<String>,
        expected: impl Display,
        got: impl Display,
    ) -> Self {
        Self::Mismatch { kind, what: what.into(), expected: expected.to_string(), got: got.to_string() }
    }

    /// The kind of a file's mismatch or fault; of others the variant's name in snake case.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mismatch { kind, .. } | Self::Malformed { kind, .. } => kind,
            other => other.into(),
        }
    }
}
