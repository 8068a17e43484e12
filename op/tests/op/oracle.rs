//! Every backend on random calls, legal and illegal: the reference's bits, and the refusals of the conformance kit's
//! `legal`, which shares no code with the operator's checks.

use kvcache_conformance::backends::Backends;
use kvcache_conformance::{Suite, random, run_cases};
use kvcache_op::{AttentionBackend, Backend, Serial};

const CASES: usize = 1000;

#[test]
fn backends_do_what_the_reference_does_and_refuse_what_is_illegal() {
    for suite in [Suite::KeyValueCache, Suite::Static] {
        let cases = random::cases(suite, CASES, 2024);
        for backend in Backend::all() {
            let attention = AttentionBackend::default();
            let report = run_cases(&Backends { backend, attention, workers: Serial }, &cases);
            assert!(report.passed() == CASES, "{}: {report}", backend.name());
        }
    }
}
