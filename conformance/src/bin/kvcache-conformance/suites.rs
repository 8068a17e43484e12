//! The cases of the chosen suites.

use std::path::Path;

use clap::ValueEnum;
use kvcache_conformance::diagnosis::Recorder;
use kvcache_conformance::{Implementation, Report, Runner, Suite, attention, random, static_batching};
use tempfile::TempDir;

use crate::error::Error;

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
        let of = |suite: SuiteName, name: &str| {
            let path = folder.map(|folder| folder.join(name));
            let there = path.as_ref().is_none_or(|path| path.is_dir());
            let wanted = if chosen.is_empty() { there } else { chosen.contains(&suite) };
            wanted.then_some(path)
        };
        let dynamic = of(SuiteName::KeyValueCache, "cases");
        let of_static_batching = of(SuiteName::Static, "static_cases");
        let attention = of(SuiteName::Attention, "attention_cases");
        if let (Some(folder), None, None, None) = (folder, &dynamic, &of_static_batching, &attention) {
            return Err(Error::NoSuite(folder.to_owned()));
        }
        Ok(Self {
            dynamic: match dynamic {
                None => Vec::new(),
                Some(None) => kvcache_conformance::cases()?,
                Some(Some(path)) => kvcache_conformance::read_cases(&path)?,
            },
            of_static_batching: match of_static_batching {
                None => Vec::new(),
                Some(None) => static_batching::cases()?,
                Some(Some(path)) => static_batching::read_cases(&path)?,
            },
            attention: match attention {
                None => Vec::new(),
                Some(None) => attention::cases()?,
                Some(Some(path)) => attention::read_cases(&path)?,
            },
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
        self.dynamic.iter_mut().flat_map(|case| &mut case.steps).for_each(|step| step.expected.forget_message());
        let of_static_batching = self.of_static_batching.iter_mut();
        of_static_batching.flat_map(|case| &mut case.steps).for_each(|step| step.expected.forget_message());
        self.attention.iter_mut().flat_map(|case| &mut case.steps).for_each(|step| step.expected.forget_message());
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

    /// Runs all on what runs the cases of each suite, and diagnoses the failures.
    pub fn run(
        &self,
        runner: &Runner<'_>,
        dynamic: &(dyn Implementation + Sync),
        of_static_batching: &(dyn Implementation<static_batching::Attributes, static_batching::StepInputs> + Sync),
        attention: &(dyn attention::Implementation + Sync),
    ) -> Report {
        let recorder = Recorder::new(dynamic);
        let mut report = runner.run(&recorder, &self.dynamic);
        if report.failed() > 0 {
            recorder.diagnose(&mut report, &self.dynamic);
        }
        let recorder = Recorder::new(of_static_batching);
        let mut of_static = runner.run(&recorder, &self.of_static_batching);
        if of_static.failed() > 0 {
            recorder.diagnose(&mut of_static, &self.of_static_batching);
        }
        let recorder = Recorder::new(attention);
        let mut of_attention = runner.run_attention(&recorder, &self.attention);
        if of_attention.failed() > 0 {
            recorder.diagnose(&mut of_attention, &self.attention);
        }
        report.append(of_static);
        report.append(of_attention);
        report
    }
}

/// The cases whose names contain this.
fn chosen<'a, C: Suite>(cases: &'a [C], filter: &'a str) -> impl Iterator<Item = &'a C> {
    cases.iter().filter(move |case| case.name().contains(filter))
}

fn lines<C: Suite>(cases: &[C], filter: &str) -> String {
    let line = |case: &C| format!("{}/{}: {} [{}]\n", C::NAME, case.name(), case.about(), case.rules().join(", "));
    chosen(cases, filter).map(line).collect()
}
