//! The attention kernels give a token the same bits whatever else is in the batch, wherever the cache is, however its
//! prompt is cut into calls, and however the work is cut into units.

#[path = "../../../attention/tests/common/call.rs"]
mod call;
#[path = "../../../attention/tests/common/model.rs"]
mod model;

use kvcache_attention::AttentionReference;
use kvcache_emulation_kernels::{EmulatedAttention, Order};
use kvcache_schema::{AttentionAttributes, CacheLayout, CacheMode, multi_head_cache_attention};
use model::{Model, Part, Placement};
use proptest::prelude::*;

fn models() -> impl Strategy<Value = Model> {
    let rows: Vec<_> = multi_head_cache_attention::combinations().collect();
    let heads = prop::sample::select(vec![(1, 1), (4, 2), (3, 1), (20, 1)]);
    let sizes = prop::sample::select(vec![(8, 8), (8, 4), (4, 2), (24, 8)]);
    let mask = prop::sample::select(vec![None, Some(2), Some(3)]);
    (prop::sample::select(rows), heads, sizes, mask, any::<bool>(), any::<u64>()).prop_map(
        |(types, (num_heads, num_kv_heads), (head_dim, quant_group), mask, is_alibi, seed)| Model {
            types,
            attention: AttentionAttributes {
                num_heads,
                head_dim,
                is_causal: 1,
                is_alibi: i64::from(is_alibi),
                num_kv_heads,
            },
            quant_group,
            mask,
            seed,
        },
    )
}

fn placements() -> impl Strategy<Value = Placement> {
    let layouts = prop::sample::select(&CacheLayout::ALL[..]);
    let modes = prop::sample::select(&CacheMode::ALL[..]);
    (layouts, modes, 1usize..6, any::<u64>()).prop_map(|(layout, mode, page_size, shuffle)| Placement {
        layout,
        mode,
        page_size,
        num_layer: 2,
        layer_idx: 1,
        shuffle,
    })
}

fn devices() -> impl Strategy<Value = EmulatedAttention> {
    let order = prop_oneof![Just(Order::Forward), Just(Order::Backward), any::<u32>().prop_map(Order::Random)];
    (any::<bool>(), 1..40u32, order, 0usize..9).prop_map(|(unaligned, multiprocessors, order, max_seqlen)| {
        EmulatedAttention { unaligned, multiprocessors, order, max_seqlen, ..EmulatedAttention::default() }
    })
}

/// Calls with some of three sequences each.
fn calls() -> impl Strategy<Value = Vec<Vec<Part>>> {
    let part = |sequence| (0usize..9).prop_map(move |tokens| Part { sequence, tokens, decoding: tokens == 1 });
    prop::collection::vec((part(0), part(1), part(2)).prop_map(|(a, b, c)| vec![a, b, c]), 1..4)
}

const SIMPLE: Placement = Placement {
    layout: CacheLayout::TokenMajor,
    mode: CacheMode::Offset,
    page_size: 1,
    num_layer: 1,
    layer_idx: 0,
    shuffle: 0,
};

/// The rows of a sequence whose tokens come in one call, alone.
fn alone(model: &Model, kernel: &EmulatedAttention, sequence: usize, tokens: usize) -> Vec<u8> {
    model.run(kernel, &SIMPLE, &[vec![Part { sequence, tokens, decoding: false }]]).swap_remove(sequence)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

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

/// Several blocks of keys and two pieces: a prompt in one call, and the same in several, whose last token's pieces are
/// units of work. The numbers are close to the reference's.
#[test]
fn long_sequences() {
    let types = multi_head_cache_attention::combinations().next().expect("there are types");
    let attention =
        AttentionAttributes { num_heads: 2, head_dim: 8, num_kv_heads: 1, ..AttentionAttributes::default() };
    let model = Model { types, attention, quant_group: 8, mask: None, seed: 11 };
    let part = |tokens| vec![Part { sequence: 0, tokens, decoding: tokens == 1 }];
    let in_pieces = [part(500), part(70), part(7), part(1)];
    let placement = Placement { mode: CacheMode::Paged, page_size: 16, ..SIMPLE };
    let tiles = EmulatedAttention { max_seqlen: 0, ..EmulatedAttention::default() };
    let steps = EmulatedAttention { multiprocessors: 3, ..EmulatedAttention::default() };
    let whole = alone(&model, &tiles, 0, 578);
    assert!(model.run(&steps, &placement, &in_pieces)[0] == whole);
    let floats =
        |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect() };
    let reference = model.run(&AttentionReference, &SIMPLE, &[part(578)]).swap_remove(0);
    for (got, expected) in floats(&whole).into_iter().zip(floats(&reference)) {
        assert!((got - expected).abs() < 2e-5, "{got}, expected {expected}");
    }
}
