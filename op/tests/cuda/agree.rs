//! The device gives the reference's bits.

use std::env;
use std::ops::Range;

use kvcache_conformance::Call;
use kvcache_op::schema::TypeCombination;
use kvcache_testing::random::{Plan, Unstructured, case, passes};
use libtest_mimic::Failed;

use crate::call::How;
use crate::device::Gpu;
use crate::golden::OnDevice;

/// Makes a call of each seed; of fewer where every thread is emulated or watched.
fn agree(gpu: &Gpu, seeds: Range<u64>, draw: impl Fn(&mut Unstructured) -> Call) -> Result<(), Failed> {
    let few = gpu.is_emulated()? || env::var_os("KVCACHE_FEW_CASES").is_some();
    for seed in seeds.step_by(if few { 48 } else { 1 }) {
        let entropy = &mut Unstructured::seed(seed);
        let how = How { unaligned: entropy.one_in(2), ..How::default() };
        passes(&OnDevice { gpu, how }, &case(draw(entropy))).map_err(|error| format!("seed {seed}: {error}"))?;
    }
    Ok(())
}

pub fn small_calls(gpu: &Gpu) -> Result<(), Failed> {
    agree(gpu, 0..4000, |entropy| Plan::draw(entropy, 12, 12).call(entropy))
}

pub fn large_calls(gpu: &Gpu) -> Result<(), Failed> {
    agree(gpu, 0..144, |entropy| Plan::draw(entropy, 80, 400).call(entropy))
}

/// One long sequence among many short ones; as many as a block has threads, less, and more.
pub fn ragged_batches(gpu: &Gpu) -> Result<(), Failed> {
    let long = if gpu.is_emulated()? { 50 } else { 3000 };
    let sizes = [255, 256, 257, 511, 512, 513, 1000].into_iter().cycle();
    for (seed, (types, batch)) in (0..).zip(TypeCombination::LEGAL.into_iter().zip(sizes)) {
        let mut sequences = vec![(usize::from(batch < 1000), 1); batch];
        sequences[7] = (0, 0);
        sequences[123] = (long, long / 2);
        sequences[batch - 1] = (0, 5);
        agree(gpu, seed..seed + 1, |entropy| {
            let plan = Plan::draw(entropy, 12, 2);
            let (num_heads, inner, group) = (plan.num_heads.max(1), plan.inner.max(1), plan.group.next_multiple_of(2));
            Plan { types, sequences: sequences.clone(), num_heads, inner, group, ..plan }.call(entropy)
        })?;
    }
    Ok(())
}
