//! The golden crate's oracle in Rust against every backend, on random calls, legal and illegal: two programs of the same
//! specification that share no code.

use kvcache_golden::{Implementation, random, run};
use kvcache_op::{Backend, Serial};

#[path = "common/memory.rs"]
mod memory;
#[path = "common/operator.rs"]
mod operator;
#[path = "common/static_operator.rs"]
mod static_operator;

const CASES: usize = 3000;

#[test]
fn backends_do_what_the_oracle_does() {
    let cases = random::cases(CASES, 2024);
    for backend in Backend::all() {
        let report = run(&operator::Operator { backend, workers: Serial } as &dyn Implementation, &cases);
        assert!(report.failed() == 0 && report.passed() == CASES, "{}: {report}", backend.name());
    }
}

#[test]
fn backends_do_what_the_oracle_does_in_static_batching() {
    let cases = random::static_cases(CASES, 2024);
    for backend in Backend::all() {
        let report = run(&static_operator::StaticOperator { backend, workers: Serial }, &cases);
        assert!(report.failed() == 0 && report.passed() == CASES, "{}: {report}", backend.name());
    }
}
