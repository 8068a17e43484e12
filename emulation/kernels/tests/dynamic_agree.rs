//! The CUDA kernels match the reference kernel bit for bit, on random calls.

#[path = "common/devices.rs"]
mod devices;
use kvcache_testing::random;

use devices::devices;
use kvcache_kernels::{Kernel, Serial};
use kvcache_op::Backend;
use proptest::prelude::*;
use random::{After, RandomCall, calls};

fn run(call: &RandomCall, kernel: &dyn Kernel) -> After {
    call.run(Backend::Reference, |call, outputs| kernel.run(&mut call.bind(outputs).unwrap(), &Serial))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn small_calls_agree(call in calls(12, 12), device in devices()) {
        prop_assert!(run(&call, &device) == run(&call, &kvcache_kernels::Reference), "{device:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// Large enough that warps make several rounds.
    #[test]
    fn large_calls_agree(call in calls(80, 200), device in devices()) {
        prop_assert!(run(&call, &device) == run(&call, &kvcache_kernels::Reference), "{device:?}");
    }
}
