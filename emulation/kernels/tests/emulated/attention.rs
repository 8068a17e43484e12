//! The attention kernels give a token the same bits whatever else is in the batch, wherever the cache is, however its
//! prompt is cut into calls, and however the work is cut into units.

use kvcache_emulation_kernels::{EmulatedAttention, EmulatedCuda, Order};
use kvcache_testing::attention_model::{self, Model, Part, Placement, placements};
use proptest::prelude::*;

fn models() -> impl Strategy<Value = Model> {
    let heads = vec![(1, 1), (4, 2), (3, 1), (20, 1)];
    attention_model::models(heads, vec![(8, 8), (8, 4), (4, 2), (24, 8)]).prop_map(|mut model| {
        model.attention.is_causal = 1;
        model
    })
}

fn devices() -> impl Strategy<Value = EmulatedAttention> {
    let order = prop_oneof![Just(Order::Forward), Just(Order::Backward), any::<u32>().prop_map(Order::Random)];
    (any::<bool>(), 1..40u32, order, 0usize..9).prop_map(|(unaligned, multiprocessors, order, max_seqlen)| {
        let device = EmulatedCuda { unaligned, multiprocessors, order, ..EmulatedCuda::default() };
        EmulatedAttention { device, max_seqlen }
    })
}

fn calls() -> impl Strategy<Value = Vec<Vec<Part>>> {
    let part = |sequence| (0usize..9).prop_map(move |tokens| Part { sequence, tokens, decoding: tokens == 1 });
    prop::collection::vec((part(0), part(1), part(2)).prop_map(|(a, b, c)| vec![a, b, c]), 1..4)
}

/// The rows of a sequence whose tokens come in one call, alone.
fn alone(model: &Model, kernel: &EmulatedAttention, sequence: usize, tokens: usize) -> Vec<u8> {
    model.run(kernel, &Placement::SIMPLE, &[vec![Part { sequence, tokens, decoding: false }]]).swap_remove(sequence)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_token_depends_on_its_own_sequence_alone(
        model in models(),
        placement in placements(),
        devices in [devices(), devices()],
        calls in calls(),
    ) {
        for (sequence, rows) in model.run(&devices[0], &placement, &calls).into_iter().enumerate() {
            let tokens = calls.iter().flatten().filter(|part| part.sequence == sequence).map(|part| part.tokens).sum();
            prop_assert!(alone(&model, &devices[1], sequence, tokens) == rows, "sequence {}", sequence);
        }
    }
}
