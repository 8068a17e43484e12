//! Sessions: sequences with their rows, written to a file and read again.
//!
//! `header` is the text before a file's data, `contents` and `spec` what it says; `write` and `read` move bytes. None
//! of them knows a manager's state: that is what `save`, `load` and `place` are for.

pub(crate) mod contents;
pub(crate) mod error;
pub(crate) mod header;
pub(crate) mod load;
mod place;
pub(crate) mod read;
mod save;
pub(crate) mod spec;
pub(crate) mod write;

#[cfg(test)]
mod tests;
