//! Runs the golden cases on a backend, or on a program in any language.
//!
//! `cargo run -p kvcache-op --example golden`                 every backend that this machine can run
//! `cargo run -p kvcache-op --example golden -- cpu-avx2`
//! `cargo run -p kvcache-op --example golden -- --program ./my-implementation`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use kvcache_golden::{Implementation, Program};
use kvcache_op::{Backend, Serial};

#[path = "../tests/common/operator.rs"]
mod operator;

/// Runs the golden cases: a line for each failure, then a count.
#[derive(Parser)]
struct Arguments {
    /// The backends to run the cases on; all, if none is named.
    #[arg(value_parser = PossibleValuesParser::new(Backend::all().map(|backend| backend.name())))]
    backends: Vec<String>,

    /// A program to run the cases on instead, called as `PROGRAM CASE_FOLDER RESULT_FILE` for each case.
    #[arg(long, conflicts_with = "backends")]
    program: Option<PathBuf>,

    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
}

fn main() -> Result<ExitCode, kvcache_golden::ReadError> {
    let arguments = Arguments::parse();
    let mut cases = kvcache_golden::cases()?;
    cases.retain(|case| case.name.contains(&arguments.filter));
    let implementations: Vec<(&str, Box<dyn Implementation>)> = match arguments.program {
        Some(path) => vec![("program", Box::new(Program { path }))],
        None => Backend::all()
            .filter(|backend| arguments.backends.is_empty() || arguments.backends.iter().any(|b| b == backend.name()))
            .map(|backend| (backend.name(), Box::new(operator::Operator { backend, workers: Serial }) as _))
            .collect(),
    };
    let mut passed = true;
    for (name, implementation) in implementations {
        let report = kvcache_golden::run(&*implementation, &cases);
        println!("{name}: {report}");
        passed &= report.failures.is_empty() && report.passed > 0;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
