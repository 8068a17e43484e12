//! Session files: sequences with their rows, written to disk and read again.
//!
//! `header` is the text before the data, `contents` what it says and the sequences' part of the data; `write` and
//! `read` move bytes. None of them knows a manager's state.

mod contents;
pub(crate) mod error;
mod header;
mod read;
mod write;

pub(crate) use contents::{SavedRope, SavedSequence, SessionSpec};
pub(crate) use read::SessionFile;
pub(crate) use write::{Session, write};

#[cfg(test)]
mod tests;
