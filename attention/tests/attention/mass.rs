//! The attention's mass: near the naive sum of the reference, and of the same bits on any number of threads and
//! whatever else is in the batch.

use std::mem::MaybeUninit;

use kvcache_attention::{AttentionCpu, AttentionKernel, AttentionReference};
use kvcache_kernels::{InstructionSet, Serial, Workers};
use kvcache_schema::{CacheAttentionAttributes, CacheLayout, CacheMode};
use kvcache_testing::attention_call::{Inputs, State, attend, attend_on};
use kvcache_testing::attention_model::{Model, Placement, models};
use kvcache_testing::backends::Threads;
use proptest::prelude::*;

/// Sequences of several pieces, with a prompt of several chunks of queries, decoding tokens, and without tokens: how
/// long each is, and how many of its tokens are new.
const SEQUENCES: [(usize, usize); 6] = [(70, 70), (1100, 1), (90, 3), (1030, 5), (0, 0), (64, 0)];

/// A call of some of the [`SEQUENCES`], and how many numbers its mass has.
struct Call {
    attributes: CacheAttentionAttributes,
    inputs: Inputs,
    before: State,
    len: usize,
}

impl Call {
    fn new(model: &Model, placement: &Placement, sequences: &[usize]) -> Self {
        let (attributes, inputs, before) = model.long_call(placement, &SEQUENCES, sequences);
        let rows: usize = sequences.iter().map(|&sequence| SEQUENCES[sequence].0).sum();
        Self { len: rows * model.attention.num_heads as usize, attributes, inputs, before }
    }

    fn mass(&self, kernel: &dyn AttentionKernel, workers: &dyn Workers) -> Vec<f32> {
        let Self { attributes, inputs, before, len } = self;
        let mut mass = vec![MaybeUninit::new(-7.0); *len];
        let output = attend_on(kernel, attributes, inputs, &mut before.clone(), Some(&mut mass), workers);
        assert!(output == attend(kernel, attributes, inputs, &mut before.clone()), "attn_output is another");
        // SAFETY: every element was initialized above.
        mass.into_iter().map(|sum| unsafe { sum.assume_init() }).collect()
    }
}

/// Every fast kernel of this machine, which splits the smallest call.
fn fast() -> impl Iterator<Item = AttentionCpu> {
    let kernels = InstructionSet::ALL.into_iter().filter_map(AttentionCpu::with_instructions);
    kernels.map(|kernel| kernel.with_parallel_cost(0))
}

fn bits(mass: &[f32]) -> Vec<u32> {
    mass.iter().map(|sum| sum.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn mass_is_the_sum_of_probabilities(
        model in models(vec![(2, 1), (6, 2)], vec![(8, 4), (48, 16)]),
        layout in prop::sample::select(&CacheLayout::ALL[..]),
        mode in prop::sample::select(&CacheMode::ALL[..]),
    ) {
        let placement = Placement { layout, mode, page_size: 100, num_layer: 2, layer_idx: 1, shuffle: 0 };
        let call = Call::new(&model, &placement, &[0, 1, 2, 3, 4, 5]);
        let alone = [0, 1, 2, 3, 4, 5].map(|sequence| {
            // What the cache holds of past tokens depends on where they are; the first sequence has none.
            let placement = if sequence == 0 { &Placement::SIMPLE } else { &placement };
            Call::new(&model, placement, &[sequence])
        });
        let naive = call.mass(&AttentionReference, &Serial);
        let heads = model.attention.num_heads as usize;
        for kernel in fast() {
            let mass = call.mass(&kernel, &Serial);
            for (i, (&got, &expected)) in mass.iter().zip(&naive).enumerate() {
                let near = (got - expected).abs() <= 1e-4 * (1.0 + expected);
                prop_assert!(near || got.is_nan() && expected.is_nan(), "{}: {} instead of {}", i, got, expected);
            }
            prop_assert!(bits(&call.mass(&kernel, &Threads(3))) == bits(&mass), "{}, threads", kernel.name());
            let alone = alone.each_ref().map(|call| call.mass(&kernel, &Serial));
            for (h, row) in mass.chunks(mass.len() / heads).enumerate() {
                let of_head = alone.each_ref().map(|alone| &alone[h * alone.len() / heads..][..alone.len() / heads]);
                prop_assert!(bits(&of_head.concat()) == bits(row), "{}, head {}, alone", kernel.name(), h);
            }
        }
    }
}
