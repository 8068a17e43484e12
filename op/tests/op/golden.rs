//! Every backend passes every golden case, refusals included.

use kvcache_conformance::backends::Backends;
use kvcache_conformance::run;
use kvcache_op::{AttentionBackend, Backend, Rayon, Serial, Workers};
use kvcache_testing::backends::{backends, splitting};

/// Each backend that stores, under the default one that attends, and each of these over the last of those.
fn all_cases_pass(stores: Vec<Backend>, attending: Vec<AttentionBackend>, workers: impl Workers + Copy) {
    let last = *stores.last().expect("there is one");
    let attending = attending.into_iter().map(|attention| (attention, last));
    let stores = stores.iter().map(|&store| (AttentionBackend::default(), store));
    for (attention, backend) in attending.chain(stores) {
        let report = run(&Backends { backend, attention, workers });
        assert!(report.passed() == report.entries.len(), "{attention:?} over {backend:?}: {report}");
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
