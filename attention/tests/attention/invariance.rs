//! The output of a token depends on its own sequence alone, bit for bit: not on what else is in the batch, in whatever
//! order; not on layout, mode, page size or placement of the cache; under a causal mask, not on how the prompt is cut
//! into calls; and not on whether keys and values are packed or in the cache.

use crate::kernels::kernels;
use kvcache_conformance::Tensor;
use kvcache_schema::{AttentionAttributes, CacheMode, multi_head_cache_attention};
use kvcache_testing::attention_call::attend;
use kvcache_testing::attention_model::{self, Model, Part, Placement, int64s, placements};
use proptest::prelude::*;

fn models() -> impl Strategy<Value = Model> {
    let heads = vec![(1, 1), (2, 1), (3, 1), (4, 2), (6, 2), (8, 1)];
    attention_model::models(
        heads,
        vec![(8, 8), (8, 4), (4, 2), (12, 4), (40, 8), (16, 8), (48, 16), (64, 2), (64, 32), (80, 80)],
    )
}

/// Calls with some of six sequences each, in any order; some of them without new tokens.
fn calls() -> impl Strategy<Value = Vec<Vec<Part>>> {
    let part = (0usize..6, 0usize..6, any::<bool>());
    let part = part.prop_map(|(sequence, tokens, decoding)| Part { sequence, tokens, decoding });
    let one_each = |parts: Vec<Part>| {
        let mut call: Vec<Part> = Vec::new();
        for part in parts {
            if call.iter().all(|other| other.sequence != part.sequence) {
                call.push(part);
            }
        }
        call
    };
    prop::collection::vec(prop::collection::vec(part, 0..6).prop_map(one_each), 1..5)
}

/// The calls of one sequence by itself, with the parts that it has among others.
fn alone(calls: &[Vec<Part>], sequence: usize) -> Vec<Vec<Part>> {
    let own = calls.iter().flatten().filter(|part| part.sequence == sequence);
    own.map(|&part| vec![part]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// In a batch and alone, wherever the cache is.
    #[test]
    fn a_token_does_not_see_the_rest_of_the_batch(
        model in models(),
        placement in placements(),
        calls in calls(),
    ) {
        for kernel in kernels() {
            let rows = model.run(&*kernel, &placement, &calls);
            for (sequence, rows) in rows.iter().enumerate() {
                let expected = model.run(&*kernel, &Placement::SIMPLE, &alone(&calls, sequence));
                prop_assert!(expected.get(sequence).unwrap_or(&Vec::new()) == rows, "sequence {}", sequence);
            }
        }
    }

    /// The same calls in another order of sequences, and in another place.
    #[test]
    fn the_order_of_sequences_does_not_matter(
        model in models(),
        placements in [placements(), placements()],
        calls in calls(),
    ) {
        let reversed: Vec<Vec<_>> = calls.iter().map(|call| call.iter().rev().copied().collect()).collect();
        for kernel in kernels() {
            let [first, second] = [(&placements[0], &calls), (&placements[1], &reversed)]
                .map(|(placement, calls)| model.run(&*kernel, placement, calls));
            prop_assert!(first == second);
        }
    }

    /// A prompt in pieces, among others, and in one call by itself.
    #[test]
    fn a_causal_prompt_may_come_in_pieces(
        mut model in models(),
        placement in placements(),
        mut calls in calls(),
    ) {
        if model.attention.is_alibi == 0 {
            model.attention.is_causal = 1;
            // Of the sequences without a causal mask, only those of one token see no more than under it.
            calls.iter_mut().flatten().for_each(|part| part.decoding &= part.tokens <= 1);
        }
        for kernel in kernels() {
            for (sequence, rows) in model.run(&*kernel, &placement, &calls).into_iter().enumerate() {
                let tokens = calls.iter().flatten().filter(|part| part.sequence == sequence);
                let tokens = tokens.map(|part| part.tokens).sum();
                let expected = model.run(&*kernel, &Placement::SIMPLE, &[vec![Part { sequence, tokens, decoding: false }]]);
                prop_assert!(expected[sequence] == rows, "sequence {}", sequence);
            }
        }
    }
}

/// Two sequences on the pages of one prompt have the bits of two that keep it each for itself.
#[test]
fn a_shared_prefix_is_as_good_as_ones_own() {
    let types = multi_head_cache_attention::all_combinations();
    for types in types {
        let attention =
            AttentionAttributes { num_heads: 4, head_dim: 8, num_kv_heads: 2, ..AttentionAttributes::default() };
        let model = Model { types, attention, quant_group: 4, mask: None, seed: 7 };
        let placement = Placement { mode: CacheMode::Paged, page_size: 4, ..Placement::SIMPLE };
        for kernel in kernels() {
            // Sequence 0 is a prompt of eight tokens and three more, in pages of four.
            let whole = &model.run(&*kernel, &placement, &[vec![part(0, 11)]])[0];
            let attributes = model.attributes(&placement);
            let mut state = model.state(&attributes, 24);
            let prompt = model.inputs(&placement, &[vec![4, 8]], &[0], &[part(0, 8)]);
            attend(&*kernel, &attributes, &prompt, &mut state);
            // Twice the same three tokens, after the same two pages, into a page of each sequence's own.
            let mut fork = model.inputs(&placement, &[vec![4, 8, 12]], &[8], &[part(0, 3)]);
            for name in ["query", "current_key", "current_value"] {
                let once = &fork[name];
                let shape = [vec![6], once.shape()[1..].to_vec()].concat();
                let twice = Tensor::new(once.element(), shape, &once.bytes().repeat(2)).expect("twice as many");
                fork.insert(name, twice);
            }
            fork.insert("seqstarts", int64s(vec![3], &[0, 3, 6]));
            fork.insert("kvstarts", int64s(vec![3], &[0, 11, 22]));
            fork.insert("start_pos", int64s(vec![2], &[8, 8]));
            fork.insert("cachestarts", int64s(vec![2, 3], &[4, 8, 12, 4, 8, 16]));
            let output = attend(&*kernel, &attributes, &fork, &mut state);
            let (first, second) = output.bytes().split_at(output.bytes().len() / 2);
            let last_three = &whole[whole.len() / 11 * 8..];
            assert!(first == last_three && second == last_three, "{types:?}");
        }
    }
}

fn part(sequence: usize, tokens: usize) -> Part {
    Part { sequence, tokens, decoding: false }
}
