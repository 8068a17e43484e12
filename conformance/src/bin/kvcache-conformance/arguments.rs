//! The arguments of the program.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

#[cfg(feature = "backends")]
use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Parser, ValueEnum};

use crate::output::Error;
#[cfg(feature = "backends")]
use crate::suites;
use crate::suites::{SuiteName, Tested};

/// Runs the conformance suite of KeyValueCache and attention on an implementation, and reports rule by rule.
///
/// Exit status: 0 if no case failed and at least one passed, 1 if not, 2 if the arguments or a file are at fault.
#[derive(Debug, Parser)]
#[command(version, group = ArgGroup::new("tested").required(true))]
pub struct Arguments {
    /// A program to test: a command that is run once for each case, in which {case} stands for the case's folder and
    /// {output} for the safetensors file that it must write.
    ///
    /// It is split into words as a shell does. Without the two it is called as COMMAND CASE OUTPUT. The file holds, for
    /// each call i, i.cache and i.scale (if given) after the call, and either i.key and i.value (attention:
    /// i.attn_output) or, in its metadata, i.error: the message of the refusal.
    #[arg(long, value_name = "COMMAND", group = "tested")]
    program: Option<String>,

    /// The program serves many cases: it reads lines from its standard input, the case's folder and the file with a tab
    /// between them, and answers each with the line `done`, or why it cannot run the case.
    #[arg(long, requires = "program")]
    serve: bool,

    /// A backend of this project to test; `cpu` is the fastest that this machine can run, `all` is each.
    #[cfg(feature = "backends")]
    #[arg(long, value_name = "NAME", group = "tested", value_parser = PossibleValuesParser::new(suites::backends()))]
    backend: Option<String>,

    /// Prints the cases, and tests nothing.
    #[arg(long, group = "tested")]
    pub list: bool,

    /// What the implementation declares that it does, a YAML file.
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,

    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,

    /// The suites to run; all, if none is named.
    #[arg(long = "suite", value_name = "SUITE", value_enum)]
    pub suites: Vec<SuiteName>,

    /// Cases to run instead of those of this build: a folder with the folders cases, static_cases, attention_cases, or
    /// some of them.
    #[arg(long, value_name = "DIR")]
    pub cases: Option<PathBuf>,

    /// Adds so many random cases to each suite of KeyValueCache; their names begin with random-.
    #[arg(long, value_name = "N")]
    pub random: Option<usize>,

    /// What the random cases are made from: the same seed makes the same cases.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,

    /// Refusals must say what this project's say: the input's name, the batch, what was expected and got.
    #[arg(long)]
    pub messages: bool,

    /// The form of the report.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    pub report: Form,

    /// Where the report is written to, instead of standard output.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// How many cases are run at once; as many as there are CPUs, if not given.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// How many seconds a program has for a case.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    timeout: Duration,
}

/// A form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For a terminal.
    Text,
    /// One JSON document.
    Json,
    /// JUnit's XML.
    Junit,
}

impl Arguments {
    /// How many cases are run at once.
    pub fn jobs(&self) -> NonZeroUsize {
        self.jobs.or_else(|| thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
    }

    /// What is tested; several, if all backends are.
    pub fn tested(&self) -> Result<Vec<Tested>, Error> {
        #[cfg(feature = "backends")]
        if let Some(name) = &self.backend {
            return Ok(Tested::backends(name));
        }
        let program = |command: &String| Ok(Tested::program(command, self.serve, self.timeout)?);
        self.program.iter().map(program).collect()
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if duration.is_zero() { Err("no time at all".to_owned()) } else { Ok(duration) }
}
