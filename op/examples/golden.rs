//! Plays the golden cases against a backend, or against a program in any language.
//!
//! `cargo run -p kvcache-op --example golden -- cpu`
//! `cargo run -p kvcache-op --example golden -- --program ./my-implementation`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use kvcache_golden::{Implementation, Program};
use kvcache_op::{Backend, Serial};

#[path = "../tests/common/operator.rs"]
mod operator;

/// Plays the golden cases: a line for each failure, then a count.
#[derive(Parser)]
struct Arguments {
    /// The backend to play against.
    #[arg(value_parser = PossibleValuesParser::new(Backend::ALL.map(Backend::name)), required_unless_present = "program")]
    backend: Option<String>,

    /// A program to play against instead, called as `PROGRAM CASE_FOLDER RESULT_FILE` for each case.
    #[arg(long, conflicts_with = "backend")]
    program: Option<PathBuf>,

    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
}

fn main() -> Result<ExitCode, kvcache_golden::ReadError> {
    let arguments = Arguments::parse();
    let mut cases = kvcache_golden::cases()?;
    cases.retain(|case| case.name.contains(&arguments.filter));
    let backend = Backend::ALL.into_iter().find(|backend| Some(backend.name()) == arguments.backend.as_deref());
    let implementation: Box<dyn Implementation> = match (backend, arguments.program) {
        (Some(backend), _) => Box::new(operator::Operator { backend, workers: Serial }),
        (None, Some(path)) => Box::new(Program { path }),
        (None, None) => unreachable!("clap asks for one of the two"),
    };
    let report = kvcache_golden::play(&*implementation, &cases);
    println!("{report}");
    Ok(if report.failures.is_empty() && report.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
