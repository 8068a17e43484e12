//! Every attention backend, and the default one over every backend that stores, passes every golden case, refusals
//! included.

use kvcache_conformance::backends::Attention;
use kvcache_testing::backends;

use kvcache_conformance::attention::{cases, run};
use kvcache_op::{AttentionBackend, Backend, Rayon, Serial, Workers};

fn all_cases_pass(workers: impl Workers + Copy) {
    let cases = cases().expect("the golden cases can be read");
    let attention = AttentionBackend::all().map(|backend| (backend, Backend::default()));
    let stores = backends::backends().map(|store| (AttentionBackend::default(), store));
    for (backend, store) in attention.chain(stores) {
        let report = run(&Attention { backend, store, workers }, &cases);
        assert!(report.failed() == 0, "{backend:?} over {store:?}: {report}");
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
