//! The CUDA kernels match the reference kernel bit for bit in static batching, on random calls.

#[path = "common/devices.rs"]
mod devices;
use kvcache_testing::static_calls;

use devices::devices;
use kvcache_kernels::{Kernel, Serial};
use kvcache_op::Backend;
use proptest::prelude::*;
use static_calls::{After, RandomStaticCall, static_calls};

fn run(call: &RandomStaticCall, kernel: &dyn Kernel) -> After {
    call.run(Backend::Reference, |call, outputs| {
        call.with_problem(outputs, |problem| kernel.run(problem, &Serial)).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn small_calls_agree(call in static_calls(12, 12), device in devices()) {
        prop_assert!(run(&call, &device) == run(&call, &kvcache_kernels::Reference), "{device:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    /// Large enough that warps make several rounds.
    #[test]
    fn large_calls_agree(call in static_calls(60, 100), device in devices()) {
        prop_assert!(run(&call, &device) == run(&call, &kvcache_kernels::Reference), "{device:?}");
    }
}
