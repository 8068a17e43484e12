//! The kit's own tests: cases, comparison, diagnosis, reports, programs under test.

mod answers;
#[cfg(unix)]
mod command;
mod comparison;
mod diagnosis;
mod located;
mod oracle;
mod profile;
#[cfg(unix)]
mod program;
