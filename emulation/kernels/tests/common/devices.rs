//! Emulated devices of every kind.

use kvcache_emulation_kernels::{EmulatedCuda, Order};
use proptest::prelude::*;

/// Devices of few multiprocessors, whose threads run in any order.
pub fn devices() -> impl Strategy<Value = EmulatedCuda> {
    let order = prop_oneof![Just(Order::Forward), Just(Order::Backward), any::<u32>().prop_map(Order::Random)];
    // Without multiprocessors, small calls have long rounds.
    (any::<bool>(), 0..4u32, order).prop_map(|(unaligned, multiprocessors, order)| EmulatedCuda {
        unaligned,
        multiprocessors,
        order,
        ..EmulatedCuda::default()
    })
}
