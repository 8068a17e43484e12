//! The CUDA kernels pass every golden case.

#[path = "common/golden.rs"]
mod golden;

use std::collections::BTreeSet;
use std::sync::Mutex;

use golden::Player;
use kvcache_conformance::{run, static_batching};
use kvcache_emulation_kernels::{EmulatedCuda, Order};
use kvcache_kernels::cuda::MODULES;

fn all_cases_pass(kernel: EmulatedCuda) {
    let cases = kvcache_conformance::cases().expect("the golden cases can be read");
    let static_cases = static_batching::cases().expect("the golden cases can be read");
    let reports =
        [(run(&Player(kernel), &cases), cases.len()), (run(&Player(kernel), &static_cases), static_cases.len())];
    for (report, cases) in reports {
        println!("{kernel:?}: {report}");
        assert!(report.failed() == 0, "{kernel:?}: {report}");
        assert_eq!(report.passed(), cases);
    }
}

/// Together the two launch every kernel.
#[test]
fn aligned_and_unaligned() {
    static LAUNCHED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    for unaligned in [false, true] {
        all_cases_pass(EmulatedCuda { unaligned, launched: Some(&LAUNCHED), ..EmulatedCuda::default() });
    }
    let kernels = MODULES.iter().flat_map(|module| module.kernels.iter().copied());
    assert_eq!(*LAUNCHED.lock().unwrap(), kernels.collect());
}

#[test]
fn last_thread_first() {
    all_cases_pass(EmulatedCuda { order: Order::Backward, multiprocessors: 0, ..EmulatedCuda::default() });
}

#[test]
fn any_order_on_a_large_device() {
    all_cases_pass(EmulatedCuda { order: Order::Random(1), multiprocessors: 100, ..EmulatedCuda::default() });
}
