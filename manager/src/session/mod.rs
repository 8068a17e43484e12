//! Sessions: sequences with their rows, written to a file and read again.
//!
//! ```text
//! save, load (with place)    a manager's state <-> saved sequences
//! sequences                  saved sequences   <-> tensors
//! cache                      the specification <-> metadata
//! file                       metadata, tensors <-> a safetensors file with a digest
//! ```

pub(crate) mod cache;
pub(crate) mod error;
pub(crate) mod file;
pub(crate) mod load;
mod place;
pub(crate) mod save;
mod sequences;

#[cfg(test)]
mod tests;
