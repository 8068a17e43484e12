//! Every backend passes every golden case of static batching.

use kvcache_conformance::backends::StaticOperator;
use kvcache_testing::backends;

use kvcache_conformance::run;
use kvcache_conformance::static_batching::cases;
use kvcache_op::{Rayon, Serial, Workers};

fn all_cases_pass(workers: impl Workers + Copy) {
    let cases = cases().expect("the golden cases can be read");
    for backend in backends::backends() {
        let report = run(&StaticOperator { backend, workers }, &cases);
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
