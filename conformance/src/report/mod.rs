//! What became of cases: one entry for each, a table by rule, and the forms in which both are written.

mod entry;
mod json;
#[cfg(feature = "junit")]
mod junit;
mod text;

pub use entry::{Counts, Entry, Flaw, Report, RuleCount, Verdict};
pub use json::JSON_VERSION;
