//! Runs the conformance suite of `KeyValueCache` and attention on an implementation, and reports rule by rule.
//!
//! `kvcache-conformance --program 'my-implementation {case} {output}'`
//! `kvcache-conformance --backend cpu-avx2 --suite static --report junit --output report.xml`
//!
//! Exit status: 0 if no case failed and at least one passed, 1 if not, 2 if the arguments or a file are at fault.

mod arguments;
mod output;
mod suites;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use kvcache_conformance::{Profile, Report, Runner};

use crate::arguments::Arguments;
use crate::output::Error;
use crate::suites::Suites;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("kvcache-conformance: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, Error> {
    let mut suites = Suites::read(arguments.cases.as_deref(), &arguments.suites)?;
    if let Some(n) = arguments.random {
        suites.add_random(n, arguments.seed, &arguments.suites)?;
    }
    if !arguments.messages {
        suites.forget_messages();
    }
    if !suites.any(&arguments.filter) {
        return Err(Error::NoCase(arguments.filter.clone()));
    }
    let output = arguments.output.as_deref();
    if arguments.list {
        output::write(output, &suites.list(&arguments.filter))?;
        return Ok(true);
    }
    let profile = |path: &PathBuf| Profile::read(path).map_err(|cause| Error::Profile { path: path.clone(), cause });
    let profile = arguments.profile.as_ref().map(profile).transpose()?;
    let runner = Runner { profile: profile.as_ref(), filter: arguments.filter.clone(), jobs: arguments.jobs() };
    let tested = arguments.tested()?;
    output::check(arguments.report, tested.len())?;
    let reports: Vec<_> = tested.iter().map(|tested| suites.run(&runner, tested)).collect();
    output::write(output, &output::reports(&reports, arguments.report))?;
    if output.is_some() {
        output::write(None, &output::summaries(&reports))?;
    }
    Ok(reports.iter().all(Report::conforms))
}
