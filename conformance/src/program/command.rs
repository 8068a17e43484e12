//! Starts a program for a case, and waits for it as long as it may take.

use std::env;
use std::env::consts::EXE_EXTENSION;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{MAIN_SEPARATOR, Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use process_wrap::std::CommandWrap;
use thiserror::Error;

use super::results::Results;
use crate::files::OnDisk;

/// A program that is called once for each case, with the case's folder and the file for its result.
///
/// It makes the case's calls and writes the result, a safetensors file with, for each call i, `i.cache` and `i.scale`
/// (if given) after the call, and either its outputs (`i.key` and `i.value`, or `i.attn_output`) or, in the file's
/// metadata, `i.error`: the message of the refusal. int4 is packed as in the case, with dtype U8. It exits with 0, or
/// with another status and a reason on standard error if it cannot run the case; then, and if a signal ends it or it
/// takes longer than its limit, the case fails.
///
/// `case.yaml` says which operator a case is of: `operator`, if that is not `KeyValueCache`, and `domain`, if that is
/// not `opmx.dynamic_batching`.
#[derive(Debug, Clone)]
pub struct Program {
    /// The program's path, then its arguments, in which [`CASE`] and [`OUTPUT`] stand for the two paths.
    words: Vec<String>,
    limit: Duration,
}

/// A command that is no template of a program.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// Its quotes are not closed.
    #[error("{command:?} cannot be split into words: {cause}")]
    Quotes {
        /// The command.
        command: String,
        /// Why.
        cause: shell_words::ParseError,
    },
    /// There is no such program.
    #[error("there is no program {program:?}")]
    NotFound {
        /// Its path or name.
        program: String,
    },
    /// It has no words.
    #[error("the command is empty")]
    Empty,
    /// It has one placeholder, and not the other.
    #[error("{command:?} has no {missing}")]
    Placeholder {
        /// The command.
        command: String,
        /// What is missing.
        missing: &'static str,
    },
}

/// Stands for the folder of the case.
const CASE: &str = "{case}";
/// Stands for the file of the result.
const OUTPUT: &str = "{output}";

impl Program {
    /// A program of this path, called as `PATH CASE OUTPUT`. It has 60 seconds for a case.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            words: vec![path.into().to_string_lossy().into_owned(), CASE.to_owned(), OUTPUT.to_owned()],
            limit: Duration::from_secs(60),
        }
    }

    /// A program by its command, which is split into words as a shell does, and in which `{case}` and `{output}` stand
    /// for the case's folder and the result's file. Without them it is called as `COMMAND CASE OUTPUT`; the path of a
    /// file is a command that is not split.
    ///
    /// # Errors
    /// If it cannot be split, is empty, names a program that is not there, or has only one of the two.
    pub fn parse(command: &str) -> Result<Self, ProgramError> {
        if Path::new(command).is_file() {
            return Ok(Self::new(command));
        }
        let mut words =
            shell_words::split(command).map_err(|cause| ProgramError::Quotes { command: command.to_owned(), cause })?;
        if words.is_empty() {
            return Err(ProgramError::Empty);
        }
        if !is_there(&words[0]) {
            return Err(ProgramError::NotFound { program: words[0].clone() });
        }
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

    /// The same program, with another time for a case.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Runs the case in a folder.
    pub(crate) fn results(&self, case: &Path) -> Result<Results, String> {
        let case = OnDisk::new(case).map_err(|error| format!("the case cannot be unpacked: {error}"))?;
        let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let (result, log) = (folder.path().join("result.safetensors"), folder.path().join("log"));
        let status = self.wait(case.path(), &result, &log)?;
        let said = || {
            // The end of what it has written says why it ended.
            let end = last_bytes(&log, 2000).unwrap_or_default();
            let end = String::from_utf8_lossy(&end).trim().to_owned();
            if end.is_empty() { String::new() } else { format!(": {end}") }
        };
        match status {
            None => Err(format!("the program was ended after {} seconds{}", self.limit.as_secs_f64(), said())),
            Some(status) if !status.success() => Err(format!("the program ended with {status}{}", said())),
            Some(_) => Results::read(&result),
        }
    }

    /// Runs the program to its end, or to that of its time. Files take what it writes: nobody need read them meanwhile,
    /// and processes that it leaves behind hold nothing up.
    fn wait(&self, case: &Path, result: &Path, log: &Path) -> Result<Option<ExitStatus>, String> {
        let not_started = |error| format!("{} could not be started: {error}", self.words[0]);
        let outputs = File::create(log).and_then(|file| Ok((file.try_clone()?, file)));
        let (stdout, stderr) = outputs.map_err(not_started)?;
        let words: Vec<_> = self.words.iter().map(|word| with_paths(word, case, result)).collect();
        let mut command = CommandWrap::with_new(&words[0], |command| {
            command.args(&words[1..]).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        });
        // With the processes that it starts itself.
        #[cfg(unix)]
        command.wrap(process_wrap::std::ProcessGroup::leader());
        #[cfg(windows)]
        command.wrap(process_wrap::std::JobObject);
        let start = Instant::now();
        let mut child = command.spawn().map_err(not_started)?;
        let mut pause = Duration::from_micros(500);
        loop {
            let lost = |error| format!("the program could not be waited for: {error}");
            if let Some(status) = child.try_wait().map_err(lost)? {
                return Ok(Some(status));
            }
            if start.elapsed() >= self.limit {
                child.kill().map_err(lost)?;
                return Ok(None);
            }
            thread::sleep(pause.min(self.limit.saturating_sub(start.elapsed())));
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

/// The last bytes of a file, at most so many.
fn last_bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_split_as_in_a_shell() {
        let words = |command: &str| Program::parse(command).unwrap().words;
        assert_eq!(words("sh {case} {output}"), ["sh", "{case}", "{output}"]);
        assert_eq!(words("sh 'my prog.sh'"), ["sh", "my prog.sh", "{case}", "{output}"]);
        assert_eq!(words("sh --out={output} --in={case} -v"), ["sh", "--out={output}", "--in={case}", "-v"]);
    }

    #[test]
    fn a_path_that_exists_is_not_split() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my prog");
        File::create(&path).unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(Program::parse(path).unwrap().words, [path, CASE, OUTPUT]);
    }

    #[test]
    fn a_command_that_is_no_template_is_refused() {
        let error = |command: &str| Program::parse(command).unwrap_err().to_string();
        assert_eq!(error(""), "the command is empty");
        assert_eq!(error("sh {case}"), "\"sh {case}\" has no {output}");
        assert_eq!(error("sh {output}"), "\"sh {output}\" has no {case}");
        assert_eq!(error("./nope {case} {output}"), "there is no program \"./nope\"");
        assert_eq!(error("no-such-program"), "there is no program \"no-such-program\"");
        assert!(error("prog 'x").contains("cannot be split into words"));
    }

    #[test]
    fn paths_stand_wherever_a_placeholder_does_and_are_not_searched_for_more() {
        let word = |word: &str| with_paths(word, Path::new("/a b/{output}"), Path::new("/r"));
        assert_eq!(word("-o={output},{case}"), "-o=/r,/a b/{output}");
        assert_eq!(word("{case}{case}"), "/a b/{output}/a b/{output}");
        assert_eq!(word("plain"), "plain");
    }
}
