//! Every backend plays every golden case.

#[path = "common/operator.rs"]
mod operator;

use kvcache_golden::{cases, play};
use kvcache_op::{Backend, Rayon, Serial, Workers};
use operator::Operator;

fn all_cases_pass(backend: Backend, workers: impl Workers) {
    let cases = cases().expect("the golden cases can be read");
    let report = play(&Operator { backend, workers }, &cases);
    println!("{}: {report}", backend.name());
    assert!(report.failures.is_empty(), "{}: {report}", backend.name());
    assert_eq!(report.passed, cases.len());
}

#[test]
fn reference() {
    all_cases_pass(Backend::Reference, Serial);
}

#[test]
fn cpu() {
    all_cases_pass(Backend::Cpu, Serial);
}

#[test]
fn cpu_with_threads() {
    all_cases_pass(Backend::Cpu, Rayon);
}
