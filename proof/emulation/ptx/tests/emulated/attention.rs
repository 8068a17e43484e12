//! The attention kernels give a token the same bits whatever else is in the batch, wherever the cache is, however its
//! prompt is cut into calls, and however the work is cut into units.

use kvcache_conformance::random::Unstructured;
use kvcache_emulation_ptx::{EmulatedAttention, EmulatedCuda, Order};
use kvcache_testing::attention::{Model, Part, Placement};
use proptest::prelude::*;

fn device(entropy: &mut Unstructured) -> EmulatedAttention {
    let order = match entropy.below(3) {
        0 => Order::Forward,
        1 => Order::Backward,
        _ => Order::Random(entropy.next() as u32),
    };
    let multiprocessors = entropy.within(1, 39) as u32;
    let device = EmulatedCuda { unaligned: entropy.one_in(2), multiprocessors, order, ..EmulatedCuda::default() };
    EmulatedAttention { device, max_seqlen: entropy.below(9), max_kvlen: entropy.pick(&[0, usize::MAX]) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_token_depends_on_its_own_sequence_alone(seed: u64) {
        let mut entropy = Unstructured::seed(seed);
        let heads = [(1, 1), (4, 2), (3, 1), (20, 1)];
        let mut model = Model::draw(&mut entropy, &heads, &[(8, 8), (8, 4), (4, 2), (24, 8)]).with_variants(&mut entropy);
        model.attention.is_causal = 1;
        let (placement, devices) = (Placement::draw(&mut entropy), [device(&mut entropy), device(&mut entropy)]);
        let mut part = |sequence| {
            let tokens = entropy.below(9);
            Part { sequence, tokens, decoding: tokens == 1 }
        };
        let calls: Vec<Vec<Part>> = (0..2).map(|_| vec![part(0), part(1), part(2)]).collect();
        for (sequence, rows) in model.run(&devices[0], &placement, &calls).into_iter().enumerate() {
            let tokens = calls.iter().map(|call| call[sequence].tokens).sum();
            // Alone, in one call.
            let whole = vec![Part { sequence, tokens, decoding: false }];
            let expected = model.run(&devices[1], &Placement::SIMPLE, &[whole]).swap_remove(sequence);
            prop_assert!(expected == rows, "sequence {}", sequence);
        }
    }
}
