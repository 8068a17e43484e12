//! Every backend passes every golden case, refusals included.

use kvcache_conformance::backends::{Attention, Operator, StaticOperator};
use kvcache_conformance::{attention, cases, run, static_batching};
use kvcache_op::{AttentionBackend, Backend, Rayon, Serial, Workers};
use kvcache_testing::backends::{backends, splitting};

const READ: &str = "the golden cases can be read";

/// Each backend that stores, under the default one that attends, and each of these over the last of those.
fn all_cases_pass(stores: Vec<Backend>, attending: Vec<AttentionBackend>, workers: impl Workers + Copy) {
    let (dynamic, of_static_batching) = (cases().expect(READ), static_batching::cases().expect(READ));
    for &backend in &stores {
        let report = run(&Operator { backend, workers }, &dynamic);
        assert!(report.passed() == dynamic.len(), "{backend:?}: {report}");
        let report = run(&StaticOperator { backend, workers }, &of_static_batching);
        assert!(report.passed() == of_static_batching.len(), "{backend:?}: {report}");
    }
    let last = *stores.last().expect("there is one");
    let attending = attending.into_iter().map(|backend| (backend, last));
    let stores = stores.iter().map(|&store| (AttentionBackend::default(), store));
    let cases = attention::cases().expect(READ);
    for (backend, store) in attending.chain(stores) {
        let report = run(&Attention { backend, store, workers }, &cases);
        assert!(report.passed() == cases.len(), "{backend:?} over {store:?}: {report}");
    }
}

#[test]
fn on_one_thread() {
    all_cases_pass(backends().collect(), AttentionBackend::all().collect(), Serial);
}

/// The one that splits even the smallest call.
#[test]
fn on_a_pool_of_threads() {
    all_cases_pass(splitting().skip(splitting().count() - 1).collect(), vec![], Rayon);
}
