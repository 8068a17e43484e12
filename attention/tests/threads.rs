//! The output does not depend on how many threads compute it, nor on the threads keeping to what they were asked for.

#[path = "common/call.rs"]
mod call;
#[path = "common/model.rs"]
#[expect(dead_code, reason = "here one call is made, over tokens that no call has stored")]
mod model;

use call::{attend, attend_on};
use kvcache_attention::{AttentionCpu, AttentionKernel};
use kvcache_kernels::{InstructionSet, Workers};
use kvcache_schema::{AttentionAttributes, CacheLayout, CacheMode, TypeCombination, multi_head_cache_attention};
use model::{Model, Part, Placement};

/// So many threads, each of which runs its task.
struct Threads(usize);

impl Workers for Threads {
    fn threads(&self) -> usize {
        self.0
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for i in 0..tasks {
                scope.spawn(move || task(i));
            }
        });
    }
}

/// Workers that do not keep to the contract: they run one task twice and the others never.
struct Careless(usize);

impl Workers for Careless {
    fn threads(&self) -> usize {
        self.0
    }

    fn run(&self, _: usize, task: &(dyn Fn(usize) + Sync)) {
        task(0);
        task(0);
    }
}

/// A sequence of several pieces of keys among short ones: of decoding tokens, and of a prompt.
#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let types: Vec<TypeCombination> = multi_head_cache_attention::combinations()
        .filter(|types| types.t3.is_none_or(|t3| t3 == types.t1) && (types.t1 == types.t2 || types.t3.is_some()))
        .collect();
    for (i, types) in types.into_iter().enumerate() {
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
        let attributes = model.attributes(&placement);
        let stride = 2200;
        let max_t = sequences.len() * stride;
        let places: Vec<Vec<i64>> = (0..sequences.len())
            .map(|b| match placement.mode {
                CacheMode::Offset => vec![(b * stride) as i64],
                CacheMode::Paged => (0..22).map(|page| (b * stride + (21 - page) * 100) as i64).collect(),
            })
            .collect();
        let parts: Vec<_> = sequences
            .iter()
            .enumerate()
            .map(|(sequence, &(_, tokens))| Part { sequence, tokens, decoding: false })
            .collect();
        let lengths: Vec<_> = sequences.iter().map(|(all, new)| all - new).collect();
        let inputs = model.inputs(&placement, &places, &lengths, &parts);
        let before = model.filled(&attributes, max_t);
        for kernel in InstructionSet::ALL.into_iter().filter_map(AttentionCpu::with_instructions) {
            let kernel = kernel.with_parallel_cost(0);
            let expected = attend(&kernel, &attributes, &inputs, &mut before.clone());
            for threads in [1, 2, 3, 7] {
                let output = attend_on(&kernel, &attributes, &inputs, &mut before.clone(), &Threads(threads));
                assert!(output == expected, "{}, {threads} threads, {types:?}", kernel.name());
            }
            let output = attend_on(&kernel, &attributes, &inputs, &mut before.clone(), &Careless(3));
            assert!(output == expected, "{}, careless threads, {types:?}", kernel.name());
        }
    }
}
