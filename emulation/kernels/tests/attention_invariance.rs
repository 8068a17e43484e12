//! The attention kernels give a token the same bits whatever else is in the batch, wherever the cache is, however its
//! prompt is cut into calls, and however the work is cut into units.

#[path = "../../../attention/tests/common/call.rs"]
mod call;
#[path = "../../../attention/tests/common/model.rs"]
mod model;

use call::{State, attend};
use kvcache_attention::{AttentionKernel, AttentionReference};
use kvcache_conformance::Tensor;
use kvcache_emulation_kernels::{EmulatedAttention, Order};
use kvcache_schema::{
    AttentionAttributes, CacheAttentionAttributes, CacheLayout, CacheMode, ElementType, multi_head_cache_attention,
};
use model::{Model, Part, Placement, int64s};
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

/// A number that follows from its place.
fn number(i: usize) -> f32 {
    ((i * 2_654_435_761) >> 8) as u16 as f32 / 8192.0 - 4.0
}

fn floats(shape: [usize; 3], seed: usize) -> Tensor {
    let numbers: Vec<u8> = (0..shape.iter().product()).flat_map(|i| number(i + seed).to_le_bytes()).collect();
    Tensor::new(ElementType::Float32, shape.to_vec(), &numbers).expect("the bytes of its shape")
}

/// The output of the last `queries` tokens of a sequence of so many keys.
fn last_rows(kernel: &dyn AttentionKernel, queries: usize, keys: usize) -> Vec<u8> {
    const HEADS: i64 = 2;
    let attributes = CacheAttentionAttributes {
        attention: AttentionAttributes { num_heads: HEADS, num_kv_heads: 1, head_dim: 8, ..Default::default() },
        ..Default::default()
    };
    let rows = |tensor: Tensor, from: usize, to: usize| {
        let row = tensor.bytes().len() / tensor.shape()[0];
        let shape = [&[to - from], &tensor.shape()[1..]].concat();
        Tensor::new(tensor.element(), shape, &tensor.bytes()[from * row..to * row]).expect("the bytes of its shape")
    };
    let all = floats([700, HEADS as usize, 8], 3);
    let inputs = [
        ("query", rows(all, keys - queries, keys)),
        ("key", rows(floats([700, 1, 8], 10_000), 0, keys)),
        ("value", rows(floats([700, 1, 8], 20_000), 0, keys)),
        ("seqstarts", int64s(vec![2], &[0, queries as i64])),
        ("kvstarts", int64s(vec![2], &[0, keys as i64])),
        ("decoding_batches", int64s(vec![1], &[0])),
    ];
    attend(kernel, &attributes, &inputs.into(), &mut State { cache: None, scale: None }).bytes().to_vec()
}

/// Two pieces of several blocks of keys: tokens in one call and in calls of their own, whose pieces are units of work or
/// not. The numbers are close to the reference's.
#[test]
fn long_sequences() {
    let tiles = EmulatedAttention { max_seqlen: 0, ..EmulatedAttention::default() };
    let steps = EmulatedAttention { multiprocessors: 3, ..EmulatedAttention::default() };
    let whole = last_rows(&tiles, 3, 700);
    assert!(last_rows(&steps, 3, 700) == whole);
    let alone: Vec<u8> = (698..=700).flat_map(|keys| last_rows(&steps, 1, keys)).collect();
    assert!(alone == whole);
    let floats =
        |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect() };
    for (got, expected) in floats(&whole).into_iter().zip(floats(&last_rows(&AttentionReference, 3, 700))) {
        assert!((got - expected).abs() < 2e-5, "{got}, expected {expected}");
    }
}
