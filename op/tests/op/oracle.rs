//! The golden crate's oracle in Rust against every backend, on random calls, legal and illegal: two programs of the same
//! specification that share no code.

use kvcache_conformance::backends::{Operator, StaticOperator};
use kvcache_conformance::{random, run};
use kvcache_op::{Backend, Serial};

const CASES: usize = 1000;

#[test]
fn backends_do_what_the_oracle_does() {
    let cases = random::cases(CASES, 2024);
    for backend in Backend::all() {
        let report = run(&Operator { backend, workers: Serial }, &cases);
        assert!(report.failed() == 0 && report.passed() == CASES, "{}: {report}", backend.name());
    }
}

#[test]
fn backends_do_what_the_oracle_does_in_static_batching() {
    let cases = random::static_cases(CASES, 2024);
    for backend in Backend::all() {
        let report = run(&StaticOperator { backend, workers: Serial }, &cases);
        assert!(report.failed() == 0 && report.passed() == CASES, "{}: {report}", backend.name());
    }
}
