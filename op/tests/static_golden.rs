//! Every backend passes every golden case of static batching.

#[path = "common/backends.rs"]
mod backends;
#[path = "common/memory.rs"]
mod memory;
#[path = "common/static_operator.rs"]
mod static_operator;

use kvcache_golden::run;
use kvcache_golden::static_batching::cases;
use kvcache_op::{Rayon, Serial, Workers};
use static_operator::StaticOperator;

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
