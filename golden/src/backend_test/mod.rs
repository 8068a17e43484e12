//! The suites in the layout of ONNX's backend tests, for runners that know it: a model and tensors in files.
//!
//! `README.md` beside this file says what is written; it is written, too.

mod expectation;
mod export;

pub use expectation::TestCase;
pub use export::{ExportError, Written, export};
