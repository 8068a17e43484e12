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

    /// A file that ends before its last tensor.
    #[error("the file has {got} bytes, expected {expected}: it is truncated")]
    Truncated { expected: u64, got: u64 },

    /// A file with bytes after its last tensor.
    #[error("the file has {got} bytes, expected {expected}: others follow its data")]
    Trailing { expected: u64, got: u64 },

    /// A header longer than safetensors allows.
    #[error("the header has {got} bytes, expected at most {max}")]
    HeaderLength { got: u64, max: u64 },

    /// A header that is not one of safetensors.
    #[error("the header is malformed: {reason}")]
    Header { reason: String },

    /// A tensor that a session has, and this file has not.
    #[error("there is no tensor {name}")]
    MissingTensor { name: String },

    /// A tensor that no session has.
    #[error("there is a tensor {name}, which is not part of a session")]
    UnknownTensor { name: String },

    /// A sequence whose first pages a window has freed: a session needs all rows.
    #[error("a window has freed the pages of the first {rows} rows of a sequence, expected none")]
    PassedRows { rows: usize },

    /// A sequence that was removed from or shifted while it was saved.
    #[error("the sequence has changed while it was saved, expected the same rows and positions")]
    Changed,

    /// A row that the file does not have.
    #[error("row {row} of sequence {sequence} is row {got} of the file, which has {rows}")]
    RowIndex { sequence: usize, row: usize, got: u64, rows: u64 },

    /// A position outside its range.
    #[error("row {row} of sequence {sequence} has position {got}, expected 0 to {max}")]
    PositionRange { sequence: usize, row: usize, got: i64, max: i64 },

    /// A position smaller than the row before it has.
    #[error("row {row} of sequence {sequence} has position {got}, expected {min} or a later one")]
    PositionOrder { sequence: usize, row: usize, got: i64, min: i64 },

    /// A row of the file that two rows of sequences say is of different tokens.
    #[error("row {row} of the file is of the tokens {tokens:?}, expected one token")]
    RowTokens { row: u64, tokens: [u32; 2] },

    /// More known tokens than rows.
    #[error("sequence {sequence} has {tokens} tokens, but {rows} rows")]
    KnownTokens { sequence: usize, tokens: u64, rows: u64 },

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

    /// The kind of a mismatch; of others the variant's name in snake case.
    pub fn kind(&self) -> &'static str {
        if let Self::Mismatch { kind, .. } = self { kind } else { self.into() }
    }
}
