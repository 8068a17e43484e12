//! The cases of the chosen suites, and what they are run on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
#[cfg(feature = "backends")]
use kvcache_conformance::backends::{Attention, Operator, StaticOperator};
use kvcache_conformance::diagnosis::{Diagnosable, Recorder};
use kvcache_conformance::{
    Implementation, Program, ProgramError, ReadError, Report, Runner, Suite, attention, random, static_batching,
};
#[cfg(feature = "backends")]
use kvcache_op::{AttentionBackend, Backend, Serial};
use tempfile::TempDir;

use crate::output::Error;

/// A suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SuiteName {
    /// KeyValueCache of dynamic batching.
    KeyValueCache,
    /// KeyValueCache of static batching.
    Static,
    /// MultiHeadAttention and MultiHeadCacheAttention.
    Attention,
}

/// The cases of each suite; none of one that is not chosen.
pub struct Suites {
    dynamic: Vec<kvcache_conformance::Case>,
    of_static_batching: Vec<static_batching::Case>,
    attention: Vec<attention::Case>,
    /// The folder of the random cases, there as long as they may be run.
    random: Option<TempDir>,
}

impl Suites {
    /// Reads the chosen suites, or all, from a folder or those of this build. Of a folder, suites that are not there
    /// are left out unless they are chosen.
    pub fn read(folder: Option<&Path>, chosen: &[SuiteName]) -> Result<Self, Error> {
        let of = |suite, name: &str| {
            let path = folder.map(|folder| folder.join(name));
            let there = path.as_ref().is_none_or(|path| path.is_dir());
            (if chosen.is_empty() { there } else { chosen.contains(&suite) }).then_some(path)
        };
        let dynamic = of(SuiteName::KeyValueCache, "cases");
        let of_static_batching = of(SuiteName::Static, "static_cases");
        let attention = of(SuiteName::Attention, "attention_cases");
        if let (Some(folder), None, None, None) = (folder, &dynamic, &of_static_batching, &attention) {
            return Err(Error::NoSuite(folder.to_owned()));
        }
        Ok(Self {
            dynamic: cases(dynamic, kvcache_conformance::cases, kvcache_conformance::read_cases)?,
            of_static_batching: cases(of_static_batching, static_batching::cases, static_batching::read_cases)?,
            attention: cases(attention, attention::cases, attention::read_cases)?,
            random: None,
        })
    }

    /// Adds so many random cases of a seed to each chosen suite of `KeyValueCache`. They are in files, for programs.
    pub fn add_random(&mut self, n: usize, seed: u64, chosen: &[SuiteName]) -> Result<(), Error> {
        let folder = TempDir::new().map_err(Error::Random)?;
        let is_chosen = |suite| chosen.is_empty() || chosen.contains(&suite);
        if is_chosen(SuiteName::KeyValueCache) {
            let mut cases = random::cases(n, seed);
            random::write(&mut cases, &folder.path().join("cases")).map_err(Error::Random)?;
            self.dynamic.extend(cases);
        }
        if is_chosen(SuiteName::Static) {
            let mut cases = random::static_cases(n, seed);
            random::write(&mut cases, &folder.path().join("static_cases")).map_err(Error::Random)?;
            self.of_static_batching.extend(cases);
        }
        if !is_chosen(SuiteName::KeyValueCache) && !is_chosen(SuiteName::Static) {
            return Err(Error::NoRandom);
        }
        self.random = Some(folder);
        Ok(())
    }

    /// Leaves open how refusals are worded.
    pub fn forget_messages(&mut self) {
        self.dynamic.iter_mut().for_each(Suite::forget_messages);
        self.of_static_batching.iter_mut().for_each(Suite::forget_messages);
        self.attention.iter_mut().for_each(Suite::forget_messages);
    }

    /// Whether there is a case whose name contains this.
    pub fn any(&self, filter: &str) -> bool {
        !self.list(filter).is_empty()
    }

    /// A line for each case whose name contains this.
    pub fn list(&self, filter: &str) -> String {
        let lines = lines(&self.dynamic, filter);
        lines + &self::lines(&self.of_static_batching, filter) + &self::lines(&self.attention, filter)
    }

    /// Runs all on an implementation, and diagnoses the failures.
    pub fn run(&self, runner: &Runner<'_>, tested: &Tested) -> Report {
        let mut report = diagnosed(runner, &*tested.dynamic, &self.dynamic);
        report.append(diagnosed(runner, &*tested.of_static_batching, &self.of_static_batching));
        report.append(diagnosed(runner, &*tested.attention, &self.attention));
        Report { implementation: tested.name.clone(), ..report }
    }
}

/// A report on a suite's cases with the known mistakes that its failures come from.
fn diagnosed<C: Diagnosable>(
    runner: &Runner<'_>,
    implementation: &(dyn Implementation<C> + Sync),
    cases: &[C],
) -> Report {
    let recorder = Recorder::new(implementation);
    let mut report = runner.run(&recorder, cases);
    if report.failed() > 0 {
        recorder.diagnose(&mut report, cases);
    }
    report
}

/// The cases of a suite: none if it is not wanted, those of this build, or those of a folder.
fn cases<C>(
    wanted: Option<Option<PathBuf>>,
    of_build: fn() -> Result<Vec<C>, ReadError>,
    of_folder: fn(&Path) -> Result<Vec<C>, ReadError>,
) -> Result<Vec<C>, ReadError> {
    match wanted {
        None => Ok(Vec::new()),
        Some(None) => of_build(),
        Some(Some(path)) => of_folder(&path),
    }
}

/// A line for each case whose name contains the filter.
fn lines<C: Suite>(cases: &[C], filter: &str) -> String {
    let line = |case: &C| format!("{}/{}: {} [{}]\n", C::NAME, case.name(), case.about(), case.rules().join(", "));
    cases.iter().filter(|case| case.name().contains(filter)).map(line).collect()
}

/// An implementation of every suite.
pub struct Tested {
    /// What the report calls it.
    pub name: String,
    /// Runs the cases of `KeyValueCache`.
    pub dynamic: Box<dyn Implementation + Sync>,
    pub of_static_batching: Box<dyn Implementation<static_batching::Case> + Sync>,
    pub attention: Box<dyn Implementation<attention::Case> + Sync>,
}

impl Tested {
    /// A program, which is started for each case, or serves many.
    pub fn program(command: &str, serves: bool, limit: Duration) -> Result<Self, ProgramError> {
        let program = if serves { Program::serving(command) } else { Program::parse(command) };
        let program = program?.with_limit(limit);
        Ok(Self {
            name: command.to_owned(),
            dynamic: Box::new(program.clone()),
            of_static_batching: Box::new(program.clone()),
            attention: Box::new(program),
        })
    }

    /// The backend called `name`, or every one, with the attention kernel of its name if there is one, on one thread.
    #[cfg(feature = "backends")]
    pub fn backends(name: &str) -> Vec<Self> {
        let name = if name == CPU { Backend::default().name() } else { name };
        let chosen = Backend::all().filter(|backend| name == ALL || backend.name() == name);
        let tested = |backend: Backend| {
            let attention = AttentionBackend::all().find(|attention| attention.name() == backend.name());
            Self {
                name: backend.name().to_owned(),
                dynamic: Box::new(Operator { backend, workers: Serial }),
                of_static_batching: Box::new(StaticOperator { backend, workers: Serial }),
                attention: Box::new(Attention {
                    backend: attention.unwrap_or_default(),
                    store: backend,
                    workers: Serial,
                }),
            }
        };
        chosen.map(tested).collect()
    }
}

#[cfg(feature = "backends")]
const ALL: &str = "all";

/// Stands for the one that is chosen where none is named.
#[cfg(feature = "backends")]
const CPU: &str = "cpu";

/// The names of the backends that this machine can run, [`CPU`] and [`ALL`].
#[cfg(feature = "backends")]
pub fn backends() -> Vec<&'static str> {
    Backend::all().map(|backend| backend.name()).chain([CPU, ALL]).collect()
}
