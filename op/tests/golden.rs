//! Every backend passes every golden case.

use kvcache_conformance::backends::Operator;
use kvcache_testing::backends;

use kvcache_conformance::{cases, run};
use kvcache_op::{Rayon, Serial, Workers};

fn all_cases_pass(workers: impl Workers + Copy) {
    let cases = cases().expect("the golden cases can be read");
    for backend in backends::backends() {
        let report = run(&Operator { backend, workers }, &cases);
        println!("{backend:?}: {report}");
        assert!(report.failed() == 0, "{backend:?}: {report}");
        assert_eq!(report.passed(), cases.len());
    }
}

#[test]
fn on_one_thread() {
    all_cases_pass(Serial);
}

#[test]
fn on_a_pool_of_threads() {
    all_cases_pass(Rayon);
}
