//! Short sequences in random calls: a token's output does not depend on what else is in the batch, in whatever order;
//! not on layout, mode, page size or placement of the cache; under a causal mask, not on how the prompt is cut into
//! calls; and not on whether keys and values are packed or in the cache, which every call compares.

use kvcache_conformance::random::Unstructured;
use kvcache_kernels::Serial;
use kvcache_schema::{AttentionAttributes, CacheMode, multi_head_cache_attention};
use kvcache_testing::attention::{Model, Part, Placement, Sequences};
use proptest::prelude::*;

use crate::kernels;

fn model(entropy: &mut Unstructured) -> Model {
    let heads = [(1, 1), (2, 1), (3, 1), (4, 2), (6, 2), (8, 1)];
    let sizes = [(8, 8), (8, 4), (4, 2), (12, 4), (40, 8), (16, 8), (48, 16), (64, 2), (64, 32), (80, 80)];
    Model::draw(entropy, &heads, &sizes).with_variants(entropy)
}

/// Calls with some of six sequences each, in any order; some of them without new tokens.
fn calls(entropy: &mut Unstructured) -> Vec<Vec<Part>> {
    let call = |entropy: &mut Unstructured| {
        let mut sequences: Vec<usize> = (0..6).collect();
        entropy.shuffle(&mut sequences);
        sequences.truncate(entropy.below(6));
        let part = |sequence| Part { sequence, tokens: entropy.below(6), decoding: entropy.one_in(2) };
        sequences.into_iter().map(part).collect()
    };
    (0..entropy.within(1, 4)).map(|_| call(entropy)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// In a batch and alone, wherever the cache is.
    #[test]
    fn a_token_does_not_see_the_rest_of_the_batch(seed: u64) {
        let mut entropy = Unstructured::seed(seed);
        let (model, placement, calls) = (model(&mut entropy), Placement::draw(&mut entropy), calls(&mut entropy));
        for kernel in kernels() {
            for (sequence, rows) in model.run(&*kernel, &placement, &calls).iter().enumerate() {
                let own = calls.iter().flatten().filter(|part| part.sequence == sequence);
                let alone: Vec<_> = own.map(|&part| vec![part]).collect();
                let expected = model.run(&*kernel, &Placement::SIMPLE, &alone);
                prop_assert!(expected.get(sequence).unwrap_or(&Vec::new()) == rows, "sequence {}", sequence);
            }
        }
    }

    /// The same calls in another order of sequences, and in another place.
    #[test]
    fn the_order_of_sequences_does_not_matter(seed: u64) {
        let mut entropy = Unstructured::seed(seed);
        let (model, calls) = (model(&mut entropy), calls(&mut entropy));
        let places = [Placement::draw(&mut entropy), Placement::draw(&mut entropy)];
        let reversed: Vec<Vec<_>> = calls.iter().map(|call| call.iter().rev().copied().collect()).collect();
        for kernel in kernels() {
            prop_assert!(model.run(&*kernel, &places[0], &calls) == model.run(&*kernel, &places[1], &reversed));
        }
    }

    /// A prompt in several calls, among others, and in one call by itself.
    #[test]
    fn a_causal_prompt_may_come_in_several_calls(seed: u64) {
        let mut entropy = Unstructured::seed(seed);
        let (mut model, placement) = (model(&mut entropy), Placement::draw(&mut entropy));
        let mut calls = calls(&mut entropy);
        if model.attention.is_alibi == 0 {
            model.attention.is_causal = 1;
            // Without a causal mask, a sequence of one token sees no more than with it; a longer one does.
            calls.iter_mut().flatten().for_each(|part| part.decoding &= part.tokens <= 1);
        }
        for kernel in kernels() {
            for (sequence, rows) in model.run(&*kernel, &placement, &calls).into_iter().enumerate() {
                let own = calls.iter().flatten().filter(|part| part.sequence == sequence);
                let whole = Part { sequence, tokens: own.map(|part| part.tokens).sum(), decoding: false };
                let expected = model.run(&*kernel, &Placement::SIMPLE, &[vec![whole]]);
                prop_assert!(expected[sequence] == rows, "sequence {}", sequence);
            }
        }
    }
}

/// Two sequences on the pages of one prompt have the bits of a sequence that keeps it for itself.
#[test]
fn a_shared_prefix_is_as_good_as_ones_own() {
    let part = |sequence, tokens| Part { sequence, tokens, decoding: false };
    for types in multi_head_cache_attention::all_combinations() {
        let attention =
            AttentionAttributes { num_heads: 4, head_dim: 8, num_kv_heads: 2, ..AttentionAttributes::default() };
        let model = Model { types, attention, quant_group: 4, mask: None, has_sinks: false, seed: 7 };
        let placement = Placement { mode: CacheMode::Paged, page_size: 4, ..Placement::SIMPLE };
        for kernel in kernels() {
            // A prompt of eight tokens and three more, in pages of four.
            let whole = &model.run(&*kernel, &placement, &[vec![part(0, 11)]])[0];
            let mut sequences = Sequences::new(&model, &placement, &[11, 11]);
            sequences.attend(&*kernel, &[part(0, 8)], &Serial);
            sequences.fork(1, 0, 2);
            let output = sequences.attend(&*kernel, &[part(0, 3), part(1, 3)], &Serial);
            assert!(*output.bytes() == whole[whole.len() / 11 * 8..].repeat(2), "{types:?}");
        }
    }
}
