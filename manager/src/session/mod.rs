//! Sessions: sequences with their rows, written to a file and read again.
//!
//! `header` is the text before a file's data, `contents` and `spec` what it says; `write` and `read` move bytes. None
//! of them knows a manager's state: that is what `save`, `load` and `place` are for.

mod contents;
pub(crate) mod error;
mod header;
pub(crate) mod load;
mod place;
mod read;
mod save;
pub(crate) mod spec;
mod write;

#[cfg(test)]
mod tests;
