//! Writes reports.

use std::fs;
use std::io::{Write, stdout};
use std::path::Path;

use kvcache_conformance::Report;

use crate::arguments::Form;
use crate::error::Error;

/// Refuses several reports in a form of one.
pub fn check(form: Form, reports: usize) -> Result<(), Error> {
    if form == Form::Text || reports == 1 { Ok(()) } else { Err(Error::SeveralReports(reports)) }
}

pub fn reports(reports: &[Report], form: Form) -> String {
    let report = |report: &Report| match form {
        Form::Text => report.text(),
        Form::Json => report.json() + "\n",
        Form::Junit => report.junit(),
    };
    reports.iter().map(report).collect()
}

/// A line for each report.
pub fn summaries(reports: &[Report]) -> String {
    reports.iter().map(|report| report.summary() + "\n").collect()
}

/// Writes text to a file, or to standard output.
pub fn write(path: Option<&Path>, text: &str) -> Result<(), Error> {
    let (to, done) = match path {
        None => ("standard output".to_owned(), stdout().lock().write_all(text.as_bytes())),
        Some(path) => (path.display().to_string(), fs::write(path, text)),
    };
    done.map_err(|cause| Error::Output { to, cause })
}
