//! Attention gives a token the same bits whatever else is in the batch, wherever the cache is, however its prompt is
//! cut into calls, and however the work is cut into units.

use kvcache_conformance::{Call, Operator, Tensor, Tensors};
use kvcache_emulation_ptx::{Emulation, Order};
use kvcache_op::schema::{AttentionAttributes, Attributes, CacheAttentionAttributes};
use kvcache_testing::attention::{Model, Part, Placement};
use kvcache_testing::random::Unstructured;
use libtest_mimic::Failed;

use crate::call::{CallOptions, Uploaded};
use crate::device::{Gpu, Result as OnGpu};

/// A call of `MultiHeadCacheAttention`, or without a cache of `MultiHeadAttention`, on a device.
fn attend(
    gpu: &Gpu,
    options: CallOptions,
    attributes: &CacheAttentionAttributes,
    inputs: &Tensors,
    [cache, scale]: [Option<&mut Tensor>; 2],
) -> OnGpu<Tensor> {
    let operator = if cache.is_some() { Operator::MultiHeadCacheAttention } else { Operator::MultiHeadAttention };
    let of_attention = AttentionAttributes::SPEC.iter().map(|spec| (spec.name, spec.value(&attributes.attention)));
    let of_cache = Attributes::SPEC.iter().map(|spec| (spec.name, spec.value(&attributes.cache)));
    let is_named = |(name, _): &(&'static str, i64)| operator.attributes().contains_key(name);
    let floats = AttentionAttributes::FLOATS.iter().map(|spec| (spec.name, spec.value(&attributes.attention)));
    let call = Call {
        operator,
        // `MultiHeadCacheAttention` has no `num_repeat`, and `MultiHeadAttention` nothing of the cache's.
        attributes: of_cache.chain(of_attention).filter(is_named).collect(),
        floats: floats.collect(),
        inputs: operator.inputs().filter_map(|name| Some((name, inputs.get(name)?.clone()))).collect(),
        cache: cache.as_deref().cloned(),
        scale: scale.as_deref().cloned(),
    };
    let after = Uploaded::new(gpu, &call, options)?;
    let output = after.run(&call)?.swap_remove(0);
    gpu.nothing_found()?;
    for (before, after) in [cache, scale].into_iter().zip(after.state()?) {
        before.zip(after).into_iter().for_each(|(before, after)| *before = after);
    }
    Ok(output)
}

fn device(entropy: &mut Unstructured) -> OnGpu<(Gpu, CallOptions)> {
    let order = entropy.pick(&[Order::Forward, Order::Backward, Order::Random(entropy.clone().next() as u32)]);
    let multiprocessors = entropy.within(1, 39) as u32;
    let bounds = entropy.one_in(2).then(|| [entropy.below(9) as i64, entropy.pick(&[0, 1 << 40])]);
    let options = CallOptions { unaligned: entropy.one_in(2), bounds, ..CallOptions::default() };
    Ok((Gpu::emulated(&Emulation { order, multiprocessors, ..Emulation::default() })?, options))
}

pub fn a_token_depends_on_its_own_sequence_alone(gpu: &Gpu) -> Result<(), Failed> {
    for seed in 0..if gpu.is_emulated()? { 12 } else { 200 } {
        let mut entropy = Unstructured::seed(seed);
        let heads = [(1, 1), (4, 2), (3, 1), (20, 1)];
        let mut model =
            Model::draw(&mut entropy, &heads, &[(8, 8), (8, 4), (4, 2), (24, 8)]).with_variants(&mut entropy);
        model.attention.is_causal = 1;
        let (placement, devices) = (Placement::draw(&mut entropy), [device(&mut entropy)?, device(&mut entropy)?]);
        let mut part = |sequence| {
            let tokens = entropy.below(9);
            Part { sequence, tokens, decoding: tokens == 1 }
        };
        let calls: Vec<Vec<Part>> = (0..2).map(|_| vec![part(0), part(1), part(2)]).collect();
        let run = |i: usize, placement: &Placement, calls: &[Vec<Part>]| {
            let (gpu, options) = &devices[i];
            model.run_with(
                &mut |attributes, inputs, state| {
                    attend(gpu, *options, attributes, inputs, state)
                        .unwrap_or_else(|error| panic!("seed {seed}: {error}"))
                },
                placement,
                calls,
            )
        };
        for (sequence, rows) in run(0, &placement, &calls).into_iter().enumerate() {
            let tokens = calls.iter().map(|call| call[sequence].tokens).sum();
            // Alone, in one call.
            let whole = vec![Part { sequence, tokens, decoding: false }];
            let expected = run(1, &Placement::SIMPLE, &[whole]).swap_remove(sequence);
            assert!(expected == rows, "seed {seed}, sequence {sequence}");
        }
    }
    Ok(())
}
