//! What became of cases: one entry for each, a table by rule, and the forms in which both are written.

mod counts;
mod entry;
mod json;
#[cfg(feature = "junit")]
mod junit;
mod text;

pub use counts::{Counts, RuleCount};
pub use entry::{Entry, Report, Verdict};
pub use json::JSON_VERSION;
