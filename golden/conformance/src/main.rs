//! Runs the conformance suite of `KeyValueCache` and attention on an implementation, and reports rule by rule.
//!
//! `kvcache-conformance --program 'my-implementation {case} {output}'`
//! `kvcache-conformance --ort-library libmy_operators.so --profile golden/profiles/float16-paged.yaml`
//! `kvcache-conformance --export-onnx backend-tests --suite key-value-cache`
//! `kvcache-conformance --backend cpu-avx2 --suite static --report junit --output report.xml`
//!
//! Exit status: 0 if no case failed and at least one passed, 1 if not, 2 if the arguments or a file are at fault.

mod arguments;
#[cfg(feature = "backends")]
mod backends;
mod error;
mod output;
mod suites;
mod tested;

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

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use kvcache_golden::backend_test::Written;
use kvcache_golden::{Profile, Report, Runner};

use crate::arguments::Arguments;
use crate::error::Error;
use crate::suites::Suites;
use crate::tested::Tested;

fn main() -> ExitCode {
    // This program is also the process in which ONNX Runtime runs.
    #[cfg(feature = "onnxruntime")]
    if let Some(code) = kvcache_golden::onnxruntime::worker() {
        return code;
    }
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
    if let Some(folder) = &arguments.export_onnx {
        let Written { tests, refused, data_sets } = suites.export(folder, &arguments.filter)?;
        let folder = folder.display();
        let done = format!("{folder}: {tests} tests in node, {refused} in refused, with {data_sets} data sets\n");
        output::write(output, &done)?;
        return Ok(true);
    }
    let profile = |path: &PathBuf| Profile::read(path).map_err(|cause| Error::Profile { path: path.clone(), cause });
    let profile = arguments.profile.as_ref().map(profile).transpose()?;
    let runner = Runner { profile: profile.as_ref(), filter: arguments.filter.clone(), jobs: arguments.jobs() };
    let report = |tested: &Tested| {
        let mut report = tested.report(&suites, &runner);
        if arguments.performance {
            report.performance = Some(tested.performance()?);
        }
        Ok(report)
    };
    let tested = arguments.tested()?;
    output::check(arguments.report, tested.len())?;
    let reports = tested.iter().map(report).collect::<Result<Vec<_>, Error>>()?;
    output::write(output, &output::reports(&reports, arguments.report))?;
    if output.is_some() {
        output::write(None, &output::summaries(&reports))?;
    }
    Ok(reports.iter().all(Report::conforms))
}
