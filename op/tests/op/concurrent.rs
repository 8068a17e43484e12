//! Calls at once, on one pool of threads or on threads of their own, have the bits of one call after the other.

use std::thread;

use kvcache_conformance::Case;
use kvcache_conformance::backends::Backends;
use kvcache_op::{AttentionBackend, Rayon};
use kvcache_testing::backends::{Threads, splitting};
use kvcache_testing::guarded::{Guard, OnGuarded};
use kvcache_testing::random::{drawn, passes};

/// The same calls on several threads, each of which begins with another one.
fn run_at_once(cases: &[Case], run: impl Fn(&Case) -> Result<(), String> + Sync) {
    thread::scope(|scope| {
        for first in 0..4 {
            let run = &run;
            scope.spawn(move || {
                for i in (0..cases.len()).map(|i| (first + i) % cases.len()) {
                    run(&cases[i]).unwrap_or_else(|error| panic!("thread {first}, call {i}: {error}"));
                }
            });
        }
    });
}

#[test]
fn calls_at_once_have_the_bits_of_one_after_the_other() {
    let cases: Vec<_> = (0..6).map(|seed| drawn(seed, 40, 60)).collect();
    let attention = AttentionBackend::default();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for backend in splitting() {
        let guard = Guard::PastLine;
        let pooled = OnGuarded { backends: Backends { backend, attention, workers: Rayon }, guard };
        run_at_once(&cases, |case| pool.install(|| passes(&pooled, case)));
        let own = OnGuarded { backends: Backends { backend, attention, workers: Threads(2) }, guard };
        run_at_once(&cases, |case| passes(&own, case));
    }
}
