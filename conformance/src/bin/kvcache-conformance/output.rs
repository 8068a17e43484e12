//! Writes reports; and what ends the program before there is one.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::{fs, io};

use kvcache_conformance::{ProfileError, ProgramError, ReadError, Report};
use thiserror::Error;

use crate::arguments::Form;

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

/// A fault of the arguments or of a file.
#[derive(Debug, Error)]
pub enum Error {
    #[error(transparent)]
    Cases(#[from] ReadError),
    /// A folder has no folder of a suite.
    #[error("{}: none of the folders cases, static_cases and attention_cases is there", .0.display())]
    NoSuite(PathBuf),
    /// No name of a case contains the filter.
    #[error("no case has a name that contains {0:?}")]
    NoCase(String),
    /// The profile cannot be read.
    #[error("profile {}: {cause}", path.display())]
    Profile { path: PathBuf, cause: ProfileError },
    /// The program's command is no template.
    #[error("--program: {0}")]
    Program(#[from] ProgramError),
    /// Random cases cannot be written.
    #[error("random cases cannot be written: {0}")]
    Random(io::Error),
    /// No suite that is chosen has random cases.
    #[error("--random: only the suites key-value-cache and static have random cases")]
    NoRandom,
    /// The report cannot be written.
    #[error("{to}: {cause}")]
    Output { to: String, cause: io::Error },
    /// Several implementations, in a form of one.
    #[error("--report json and junit are for one backend; {0} were run")]
    SeveralReports(usize),
}
