//! The CUDA kernels play every golden case.

#[path = "common/golden.rs"]
mod golden;

use golden::Player;
use kvcache_cuda_on_cpu::{CudaOnCpu, Order};

fn all_cases_pass(kernel: CudaOnCpu) {
    let cases = kvcache_golden::cases().expect("the golden cases can be read");
    let report = kvcache_golden::play(&Player(kernel), &cases);
    println!("{kernel:?}: {report}");
    assert!(report.failures.is_empty(), "{kernel:?}: {report}");
    assert_eq!(report.passed, cases.len());
}

#[test]
fn aligned() {
    all_cases_pass(CudaOnCpu::default());
}

#[test]
fn unaligned() {
    all_cases_pass(CudaOnCpu { unaligned: true, ..CudaOnCpu::default() });
}

#[test]
fn last_thread_first() {
    all_cases_pass(CudaOnCpu { order: Order::Backward, ..CudaOnCpu::default() });
}

#[test]
fn any_order_on_a_large_device() {
    all_cases_pass(CudaOnCpu { order: Order::Random(1), multiprocessors: 100, ..CudaOnCpu::default() });
}
