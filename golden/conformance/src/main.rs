//! Runs the conformance suite of `KeyValueCache` and attention on an implementation, and reports rule by rule.
//!
//! `kvcache-conformance --program 'my-implementation {case} {output}'`
//! `kvcache-conformance --backend cpu-avx2 --suite static --report junit --output report.xml`
//!
//! Exit status: 0 if no case failed and at least one passed, 1 if not, 2 if the arguments or a file are at fault.

mod arguments;
#[cfg(feature = "backends")]
mod backends;
mod error;
mod implementations;
mod output;
mod suites;

// The operators of this project as implementations, which their own tests use too.
#[cfg(feature = "backends")]
#[path = "../../../op/tests/common/attention.rs"]
mod attention_operators;
#[cfg(feature = "backends")]
#[path = "../../../op/tests/common/memory.rs"]
mod memory;
#[cfg(feature = "backends")]
#[path = "../../../op/tests/common/operator.rs"]
mod operator;
#[cfg(feature = "backends")]
#[path = "../../../op/tests/common/static_operator.rs"]
mod static_operator;

use std::process::ExitCode;

use clap::Parser;
use kvcache_golden::{Profile, Runner};

use crate::arguments::Arguments;
use crate::error::Error;
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

/// Whether every implementation conforms.
fn run(arguments: &Arguments) -> Result<bool, Error> {
    let suites = Suites::read(arguments.cases.as_deref(), &arguments.suites)?;
    if !suites.any(&arguments.filter) {
        return Err(Error::NoCase(arguments.filter.clone()));
    }
    if arguments.list {
        output::write(arguments.output.as_deref(), &suites.list(&arguments.filter))?;
        return Ok(true);
    }
    let profile = arguments
        .profile
        .as_deref()
        .map(|path| Profile::read(path).map_err(|cause| Error::Profile { path: path.to_owned(), cause }));
    let profile = profile.transpose()?;
    let runner = Runner { profile: profile.as_ref(), filter: arguments.filter.clone(), jobs: arguments.jobs() };
    let implementations = arguments.implementations()?;
    let reports: Vec<_> = implementations.iter().map(|implementation| suites.run(&runner, implementation)).collect();
    output::write(arguments.output.as_deref(), &output::reports(&reports, arguments.report)?)?;
    if arguments.output.is_some() {
        output::write(None, &output::summaries(&reports))?;
    }
    Ok(reports.iter().all(kvcache_golden::Report::conforms))
}
