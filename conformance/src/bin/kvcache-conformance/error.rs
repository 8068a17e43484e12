//! What ends the program before there is a report.

use std::io;
use std::path::PathBuf;

use kvcache_conformance::{ProfileError, ProgramError, ReadError};
use thiserror::Error;

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
