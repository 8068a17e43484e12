//! Every backend passes every golden case, refusals included.

use kvcache_conformance::backends::{Attention, Operator, StaticOperator};
use kvcache_conformance::{attention, cases, run, static_batching};
use kvcache_op::{AttentionBackend, Backend, Rayon, Serial, Workers};
use kvcache_testing::backends::backends;

const READ: &str = "the golden cases can be read";

fn all_cases_pass(workers: impl Workers + Copy) {
    let (dynamic, of_static_batching) = (cases().expect(READ), static_batching::cases().expect(READ));
    for backend in backends() {
        let report = run(&Operator { backend, workers }, &dynamic);
        assert!(report.passed() == dynamic.len(), "{backend:?}: {report}");
        let report = run(&StaticOperator { backend, workers }, &of_static_batching);
        assert!(report.passed() == of_static_batching.len(), "{backend:?}: {report}");
    }
    // Each kernel that attends, and the default one over every kernel that stores.
    let attending = AttentionBackend::all().map(|backend| (backend, Backend::default()));
    let stores = backends().map(|store| (AttentionBackend::default(), store));
    let cases = attention::cases().expect(READ);
    for (backend, store) in attending.chain(stores) {
        let report = run(&Attention { backend, store, workers }, &cases);
        assert!(report.passed() == cases.len(), "{backend:?} over {store:?}: {report}");
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
