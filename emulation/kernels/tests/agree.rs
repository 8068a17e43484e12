//! The CUDA kernels match the reference kernel bit for bit, on random calls.

#[path = "../../../op/tests/common/random.rs"]
mod random;

use kvcache_emulation_kernels::{EmulatedCuda, Order};
use kvcache_kernels::{Kernel, Serial};
use kvcache_op::Backend;
use proptest::prelude::*;
use random::{After, RandomCall, calls};

fn run(call: &RandomCall, kernel: &dyn Kernel) -> After {
    call.run(Backend::Reference, |call, outputs| kernel.run(&mut call.bind(outputs).unwrap(), &Serial))
}

fn devices() -> impl Strategy<Value = EmulatedCuda> {
    let order = prop_oneof![Just(Order::Forward), Just(Order::Backward), any::<u32>().prop_map(Order::Random)];
    // Without multiprocessors, small calls have long rounds.
    (any::<bool>(), 0..4u32, order).prop_map(|(unaligned, multiprocessors, order)| EmulatedCuda {
        unaligned,
        multiprocessors,
        order,
        ..EmulatedCuda::default()
    })
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
