//! The command of a program under test.

use std::env;
use std::env::consts::EXE_EXTENSION;
use std::ffi::OsString;
use std::path::{MAIN_SEPARATOR, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::process::{Results, run_once};
use super::server::Servers;
use crate::files::OnDisk;
use crate::run::{CallResult, Implementation};
use crate::suite::Suite;

/// A program that runs cases: it is given a case's folder and the file for its result.
///
/// It makes the case's calls and writes the result, a safetensors file with, for each call i, `i.cache` and `i.scale`
/// (if given) after the call, and either its outputs (`i.key` and `i.value`, or `i.attn_output`; and `i.attention_mass` where
/// `outputs` of `case.yaml` names it) or, in the file's metadata, `i.error`: the message of the refusal. int4 is packed as in the case, with dtype U8.
///
/// It is [started for each case](Self::parse), and exits with 0, or with another status and a reason on standard error
/// if it cannot run the case; or it [serves many](Self::serving). A case fails if the program cannot run it, if a signal
/// ends the program, or if that takes longer than its limit.
///
/// `case.yaml` says which operator a case is of: `operator`, if that is not `KeyValueCache`, and `domain`, if that is
/// not `opmx.dynamic_batching`.
#[derive(Debug, Clone)]
pub struct Program {
    /// The program's path, then its arguments, in which [`CASE`] and [`OUTPUT`] stand for the two paths.
    words: Vec<String>,
    limit: Duration,
    /// The processes that serve cases; none if one is started for each case.
    servers: Option<Arc<Servers>>,
}

#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the fields are what the messages name")]
pub enum ProgramError {
    #[error("{command:?} cannot be split into words: {cause}")]
    Quotes { command: String, cause: shell_words::ParseError },
    #[error("there is no program {program:?}")]
    NotFound { program: String },
    #[error("the command is empty")]
    Empty,
    #[error("{command:?} has no {missing}")]
    Placeholder { command: String, missing: &'static str },
    /// It has a placeholder, though it serves many cases.
    #[error("{command:?} has {placeholder}, but a program that serves reads the paths from its standard input")]
    ServesOne { command: String, placeholder: &'static str },
}

const CASE: &str = "{case}";
const OUTPUT: &str = "{output}";

impl Program {
    /// A program of this path, called as `PATH CASE OUTPUT`. It has 60 seconds for a case.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into().to_string_lossy().into_owned();
        Self { words: vec![path, CASE.to_owned(), OUTPUT.to_owned()], limit: Duration::from_secs(60), servers: None }
    }

    /// A program by its command, which is split into words as a shell does, and in which `{case}` and `{output}` stand
    /// for the case's folder and the result's file. Without them it is called as `COMMAND CASE OUTPUT`; the path of a
    /// file is a command that is not split.
    ///
    /// # Errors
    /// If it cannot be split, is empty, names a program that is not there, or has only one of the two.
    pub fn parse(command: &str) -> Result<Self, ProgramError> {
        let mut words = split(command)?;
        let missing = |placeholder| !words.iter().any(|word| word.contains(placeholder));
        match (missing(CASE), missing(OUTPUT)) {
            (false, false) => {}
            (true, true) => words.extend([CASE.to_owned(), OUTPUT.to_owned()]),
            (no_case, _) => {
                let missing = if no_case { CASE } else { OUTPUT };
                return Err(ProgramError::Placeholder { command: command.to_owned(), missing });
            }
        }
        Ok(Self { words, ..Self::new(command) })
    }

    /// A program that serves many cases, by its command without placeholders. For each case it reads a line from its
    /// standard input, the case's folder and the result's file with a tab between them, and, when it has written the
    /// result, answers with the line `done` on its standard output; or with another line, why it cannot run the case. It
    /// ends where its input ends. There is a process for each case that is run at once; in place of one that crashes, or
    /// takes longer than its limit, another is started.
    ///
    /// # Errors
    /// If the command cannot be split, is empty, names a program that is not there, or has a placeholder.
    pub fn serving(command: &str) -> Result<Self, ProgramError> {
        let words = split(command)?;
        for placeholder in [CASE, OUTPUT] {
            if words.iter().any(|word| word.contains(placeholder)) {
                return Err(ProgramError::ServesOne { command: command.to_owned(), placeholder });
            }
        }
        Ok(Self { words, servers: Some(Arc::default()), ..Self::new(command) })
    }

    /// The same program, with another time for a case.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    pub(crate) fn results(&self, case: &Path) -> Result<Results, String> {
        let case = OnDisk::new(case).map_err(|error| format!("the case cannot be unpacked: {error}"))?;
        let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let result = folder.path().join("result.safetensors");
        match &self.servers {
            Some(servers) => servers.run(&self.words, case.path(), &result, self.limit)?,
            None => {
                let words: Vec<_> = self.words.iter().map(|word| with_paths(word, case.path(), &result)).collect();
                run_once(&words, self.limit)?;
            }
        }
        Results::read(&result)
    }
}

impl<C: Suite> Implementation<C> for Program {
    fn run(&self, case: &C) -> Result<Vec<CallResult>, String> {
        let results = self.results(case.folder())?;
        let [cache, scale] = case.state();
        let result = |i: usize| {
            Ok(CallResult {
                outcome: results.outcome(i, case.outputs())?,
                cache: results.optional(i, "cache", cache)?,
                scale: results.optional(i, "scale", scale)?,
            })
        };
        (0..case.calls().len()).map(result).collect()
    }
}

/// The words of a command whose program is there.
fn split(command: &str) -> Result<Vec<String>, ProgramError> {
    if Path::new(command).is_file() {
        return Ok(vec![command.to_owned()]);
    }
    let words =
        shell_words::split(command).map_err(|cause| ProgramError::Quotes { command: command.to_owned(), cause })?;
    match words.first() {
        None => Err(ProgramError::Empty),
        Some(program) if !is_there(program) => Err(ProgramError::NotFound { program: program.clone() }),
        Some(_) => Ok(words),
    }
}

/// Whether a shell would find this program.
fn is_there(program: &str) -> bool {
    if program.contains(MAIN_SEPARATOR) || program.contains('/') {
        return Path::new(program).is_file();
    }
    let paths = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&paths).any(|folder| folder.join(program).with_extension(EXE_EXTENSION).is_file())
}

/// A word of the command, with the paths in the places of the placeholders.
fn with_paths(word: &str, case: &Path, result: &Path) -> OsString {
    let mut whole = OsString::new();
    let mut rest = word;
    let placeholders = [(CASE, case), (OUTPUT, result)];
    while let Some(((before, after), path)) = placeholders
        .into_iter()
        .filter_map(|(placeholder, path)| Some((rest.split_once(placeholder)?, path)))
        .min_by_key(|((before, _), _)| before.len())
    {
        whole.push(before);
        whole.push(path);
        rest = after;
    }
    whole.push(rest);
    whole
}
