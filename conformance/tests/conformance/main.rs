//! The kit's own tests: cases, comparison, reports.

mod answers;
mod cases;
mod comparison;
mod located;
mod report;
