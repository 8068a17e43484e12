//! Fuzz targets. Each is a function of any bytes, which it takes for choices of a call, of a script or of a file's
//! contents, and which panics or lets a sanitizer end the process if a promise is broken. [`TARGETS`] has them by name;
//! `src/bin` makes programs of libFuzzer of them, and `corpus/` has kept inputs that a test runs.

pub mod attention;
mod call;
pub mod conformance_reader;
pub mod dlpack;
mod manager;
pub mod manager_script;
mod mutation;
mod operand;
pub mod operator;
mod oracle;
mod plan;
pub mod session_reader;
mod source;
pub mod validation;
mod workers;

mod targets;

pub use source::Random;
pub use targets::{TARGETS, Target};
