//! What ends the program before there is a report.

use std::io;
use std::path::PathBuf;

use kvcache_golden::backend_test::ExportError;
#[cfg(feature = "onnxruntime")]
use kvcache_golden::onnxruntime::OpenError;
use kvcache_golden::{ProfileError, ProgramError, ReadError};
use thiserror::Error;

/// A fault of the arguments or of a file.
#[derive(Debug, Error)]
pub enum Error {
    /// Cases cannot be read.
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
    Profile {
        /// Its file.
        path: PathBuf,
        /// Why.
        cause: ProfileError,
    },
    /// The program's command is no template.
    #[error("--program: {0}")]
    Program(#[from] ProgramError),
    /// The library of operators, or the runtime, cannot be opened.
    #[cfg(feature = "onnxruntime")]
    #[error(transparent)]
    Library(#[from] OpenError),
    /// Random cases cannot be written.
    #[error("random cases cannot be written: {0}")]
    Random(io::Error),
    /// No suite that is chosen has random cases.
    #[error("--random: only the suites key-value-cache and static have random cases")]
    NoRandom,
    /// A program's start would be measured.
    #[error("--performance times calls within a process; a program is started for each case")]
    NotTimed,
    /// There is nothing to compare answers with.
    #[cfg(any(feature = "backends", feature = "onnxruntime"))]
    #[error("--performance: {0}")]
    Performance(String),
    /// The cases cannot be written.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The report cannot be written.
    #[error("{to}: {cause}")]
    Output {
        /// Where to.
        to: String,
        /// Why.
        cause: io::Error,
    },
    /// Several implementations, in a form of one.
    #[error("--report json and junit are for one backend; {0} were run")]
    SeveralReports(usize),
}
