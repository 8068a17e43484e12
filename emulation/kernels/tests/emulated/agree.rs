//! The CUDA kernels match the reference kernel bit for bit, on random calls.

use kvcache_emulation_kernels::{EmulatedCuda, Order};
use kvcache_kernels::{Kernel, Reference, Serial};
use kvcache_op::Backend;
use kvcache_testing::random::{After, RandomCall, RandomStaticCall, calls, static_calls};
use proptest::prelude::*;

/// Devices of few multiprocessors, whose threads run in any order.
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

fn run(call: &RandomCall, kernel: &dyn Kernel) -> After {
    call.run(Backend::Reference, |call, outputs| kernel.run(&mut call.bind(outputs).unwrap(), &Serial))
}

fn run_static(call: &RandomStaticCall, kernel: &dyn Kernel) -> After {
    call.run(Backend::Reference, |call, outputs| {
        call.with_problem(outputs, |problem| kernel.run(problem, &Serial)).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn small_calls(call in calls(12, 12), device in devices()) {
        prop_assert!(run(&call, &device) == run(&call, &Reference), "{device:?}");
    }

    #[test]
    fn small_calls_of_static_batching(call in static_calls(12, 12), device in devices()) {
        prop_assert!(run_static(&call, &device) == run_static(&call, &Reference), "{device:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Large enough that warps make several rounds.
    #[test]
    fn large_calls(call in calls(80, 200), device in devices()) {
        prop_assert!(run(&call, &device) == run(&call, &Reference), "{device:?}");
    }
}
