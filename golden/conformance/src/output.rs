//! Writes reports.

use std::fs;
use std::io::{Write, stdout};
use std::path::Path;

use kvcache_golden::Report;

use crate::arguments::Form;
use crate::error::Error;

/// The reports in a form.
pub fn reports(reports: &[Report], form: Form) -> Result<String, Error> {
    match (form, reports) {
        (Form::Text, reports) => Ok(reports.iter().map(Report::text).collect()),
        (Form::Json, [report]) => Ok(report.json() + "\n"),
        (Form::Junit, [report]) => Ok(report.junit()),
        (Form::Json | Form::Junit, reports) => Err(Error::SeveralReports(reports.len())),
    }
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
