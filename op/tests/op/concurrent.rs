//! Calls at once, on one pool of threads or on threads of their own, have the bits of one call after the other.

use std::thread;

use kvcache_op::{Backend, Rayon, Serial};
use kvcache_testing::backends::{Threads, splitting};
use kvcache_testing::random::{After, RandomCall, calls};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// The same calls on several threads, each of which begins with another one.
fn run_at_once(calls: &[RandomCall], expected: &[After], run: impl Fn(&RandomCall) -> After + Sync) {
    thread::scope(|scope| {
        for first in 0..4 {
            let run = &run;
            scope.spawn(move || {
                for i in (0..calls.len()).map(|i| (first + i) % calls.len()) {
                    assert!(run(&calls[i]) == expected[i], "thread {first}, call {i}");
                }
            });
        }
    });
}

#[test]
fn calls_at_once_have_the_bits_of_one_after_the_other() {
    let mut runner = TestRunner::deterministic();
    let strategy = calls(40, 60);
    let calls: Vec<_> = (0..6).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect();
    let expected: Vec<_> = calls.iter().map(|call| call.run_on(Backend::Reference, &Serial)).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for backend in splitting() {
        run_at_once(&calls, &expected, |call| pool.install(|| call.run_on(backend, &Rayon)));
        run_at_once(&calls, &expected, |call| call.run_on(backend, &Threads(2)));
    }
}
