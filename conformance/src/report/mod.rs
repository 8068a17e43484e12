//! What became of cases: one entry for each, a table by rule, and the forms in which both are written.

mod by_rule;
mod entry;
mod json;
#[cfg(feature = "junit")]
mod junit;
mod text;

pub use by_rule::RuleCount;
pub use entry::{Entry, Report, Verdict};
pub use json::JSON_VERSION;
