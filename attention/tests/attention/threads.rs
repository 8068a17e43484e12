//! The output does not depend on how many threads compute it, nor on the threads keeping to what they were asked for.

use kvcache_attention::{AttentionCpu, AttentionKernel};
use kvcache_kernels::{InstructionSet, Serial, Workers};
use kvcache_schema::{
    AttentionAttributes, CacheAttentionAttributes, CacheLayout, CacheMode, TypeCombination, multi_head_cache_attention,
};
use kvcache_testing::attention_call::{Inputs, State, attend, attend_on};
use kvcache_testing::attention_model::{Model, Placement};
use kvcache_testing::backends::{Careless, Threads};

/// A call, and the state before it.
struct Example {
    types: TypeCombination,
    attributes: CacheAttentionAttributes,
    inputs: Inputs,
    before: State,
}

/// For each combination of types a call with a sequence of several pieces of keys among short ones: decoding tokens,
/// and a prompt.
fn examples() -> impl Iterator<Item = Example> {
    let types = multi_head_cache_attention::all_combinations()
        .filter(|types| types.t3.is_none_or(|t3| t3 == types.t1) && (types.t1 == types.t2 || types.t3.is_some()));
    types.enumerate().map(|(i, types)| {
        let attention = AttentionAttributes {
            num_heads: 2,
            head_dim: 8,
            num_kv_heads: 1 + (i % 2) as i64,
            is_alibi: i64::from(i % 3 == 2),
            ..AttentionAttributes::default()
        };
        let model = Model { types, attention, quant_group: 8, mask: (i % 2 == 1).then_some(2), seed: i as u64 };
        let placement = Placement {
            layout: CacheLayout::ALL[i % 4],
            mode: CacheMode::ALL[i / 2 % 2],
            page_size: 100,
            num_layer: 2,
            layer_idx: 1,
            shuffle: 5,
        };
        // How long each sequence is, and how many of its tokens are new.
        let sequences = [(40, 1), (2100, 1), (3, 3), (0, 0), (1100, 5), (64, 1)];
        let (attributes, inputs, before) = model.long_call(&placement, &sequences, &[0, 1, 2, 3, 4, 5]);
        Example { types, attributes, inputs, before }
    })
}

/// Every kernel of this machine, which splits the smallest call.
fn kernels() -> impl Iterator<Item = AttentionCpu> {
    let kernels = InstructionSet::ALL.into_iter().filter_map(AttentionCpu::with_instructions);
    kernels.map(|kernel| kernel.with_parallel_cost(0))
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for Example { types, attributes, inputs, before } in examples() {
        for kernel in kernels() {
            let expected = attend(&kernel, &attributes, &inputs, &mut before.clone());
            for threads in [1, 2, 3, 7] {
                let output = attend_on(&kernel, &attributes, &inputs, &mut before.clone(), None, &Threads(threads));
                assert!(output == expected, "{}, {threads} threads, {types:?}", kernel.name());
            }
            let output = attend_on(&kernel, &attributes, &inputs, &mut before.clone(), None, &Careless(3));
            assert!(output == expected, "{}, careless threads, {types:?}", kernel.name());
        }
    }
}

/// Each on a cache of its own and with threads of its own: what is kept between calls is one call's at a time.
#[test]
fn calls_at_once_give_the_same_bits() {
    let examples: Vec<_> = examples().collect();
    for kernel in kernels() {
        let attend_each = |first: usize, workers: &dyn Workers| {
            let each = (0..examples.len()).map(|i| (first + i) % examples.len());
            each.map(|i| {
                let Example { attributes, inputs, before, .. } = &examples[i];
                (i, attend_on(&kernel, attributes, inputs, &mut before.clone(), None, workers))
            })
            .collect::<Vec<_>>()
        };
        let expected = attend_each(0, &Serial);
        let types: Vec<_> = examples.iter().map(|example| example.types).collect();
        std::thread::scope(|scope| {
            for first in 0..4 {
                let (attend_each, expected, types) = (&attend_each, &expected, &types);
                scope.spawn(move || {
                    for (i, output) in attend_each(first, &Threads(2)) {
                        assert!(output == expected[i].1, "{}, {:?}", kernel.name(), types[i]);
                    }
                });
            }
        });
    }
}
