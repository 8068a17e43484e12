//! Runs the golden cases of every operator on a backend, or on a program in any language.
//!
//! `cargo run -p kvcache-op --example golden`                 every backend that this machine can run
//! `cargo run -p kvcache-op --example golden -- cpu-avx2`
//! `cargo run -p kvcache-op --example golden -- --program ./my-implementation`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use kvcache_golden::static_batching::StepInputs;
use kvcache_golden::{Implementation, Program, Report, attention, static_batching};
use kvcache_op::{AttentionBackend, Backend, Serial, StaticAttributes};

#[path = "../tests/common/attention.rs"]
mod attention_operators;
#[path = "../tests/common/memory.rs"]
mod memory;
#[path = "../tests/common/operator.rs"]
mod operator;
#[path = "../tests/common/static_operator.rs"]
mod static_operator;

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

/// What runs the cases of each operator.
struct Implementations {
    name: &'static str,
    dynamic: Box<dyn Implementation>,
    of_static_batching: Box<dyn Implementation<StaticAttributes, StepInputs>>,
    attention: Box<dyn attention::Implementation>,
}

impl Implementations {
    fn program(path: PathBuf) -> Self {
        let program = Program { path };
        Self {
            name: "program",
            dynamic: Box::new(program.clone()),
            of_static_batching: Box::new(program.clone()),
            attention: Box::new(program),
        }
    }

    /// A backend, with the attention kernel of its name if there is one.
    fn backend(backend: Backend) -> Self {
        let attention = AttentionBackend::all().find(|attention| attention.name() == backend.name());
        let attention = attention.unwrap_or_default();
        Self {
            name: backend.name(),
            dynamic: Box::new(operator::Operator { backend, workers: Serial }),
            of_static_batching: Box::new(static_operator::StaticOperator { backend, workers: Serial }),
            attention: Box::new(attention_operators::Attention { backend: attention, store: backend, workers: Serial }),
        }
    }
}

fn main() -> Result<ExitCode, kvcache_golden::ReadError> {
    let arguments = Arguments::parse();
    let mut dynamic = kvcache_golden::cases()?;
    dynamic.retain(|case| case.name.contains(&arguments.filter));
    let mut of_static_batching = static_batching::cases()?;
    of_static_batching.retain(|case| case.name.contains(&arguments.filter));
    let mut attention = attention::cases()?;
    attention.retain(|case| case.name.contains(&arguments.filter));
    let chosen = |name: &str| arguments.backends.is_empty() || arguments.backends.iter().any(|chosen| chosen == name);
    let implementations: Vec<_> = match arguments.program {
        Some(path) => vec![Implementations::program(path)],
        None => Backend::all().filter(|backend| chosen(backend.name())).map(Implementations::backend).collect(),
    };
    let mut failed = false;
    for implementation in implementations {
        let reports: [(&str, Report); 3] = [
            ("KeyValueCache", kvcache_golden::run(&*implementation.dynamic, &dynamic)),
            ("static KeyValueCache", kvcache_golden::run(&*implementation.of_static_batching, &of_static_batching)),
            ("attention", attention::run(&*implementation.attention, &attention)),
        ];
        for (operator, report) in &reports {
            println!("{} {operator}: {report}", implementation.name);
        }
        failed |= reports.iter().any(|(_, report)| report.failed() > 0);
        failed |= reports.iter().all(|(_, report)| report.passed() == 0);
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
