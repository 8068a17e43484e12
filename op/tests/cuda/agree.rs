//! The device gives the reference's bits.

use std::env;

use kvcache_conformance::{Case, Runner, Tensor};
use kvcache_emulation_ptx::{Emulation, Order};
use kvcache_op::ElementType;
use kvcache_op::schema::TypeCombination;
use kvcache_testing::random::{Plan, Unstructured, case, one_head, static_call};
use libtest_mimic::Failed;

use crate::call::CallOptions;
use crate::device::Gpu;
use crate::golden::OnDevice;

/// Makes calls, with tensors that are aligned for their types only, or better. Emulated devices of few multiprocessors
/// run threads in any order; without multiprocessors, small calls have long rounds.
fn agree(cases: &[Case]) -> Result<(), Failed> {
    let orders = [Order::Forward, Order::Random(1), Order::Backward, Order::Random(2)];
    for (i, (order, cases)) in orders.into_iter().zip(cases.chunks(cases.len().div_ceil(orders.len()))).enumerate() {
        let gpu = &Gpu::emulated(&Emulation { order, multiprocessors: i as u32, ..Emulation::default() })?;
        let options = CallOptions { unaligned: i % 2 == 1, ..CallOptions::default() };
        let report = Runner { jobs: gpu.jobs()?, ..Runner::default() }.run(&OnDevice { gpu, options }, cases);
        if report.passed() < cases.len() {
            return Err(report.to_string().into());
        }
    }
    Ok(())
}

/// A case of each seed; of fewer where every thread is emulated or watched.
fn drawn(gpu: &Gpu, seeds: u64, emulated: u64, draw: impl Fn(&mut Unstructured) -> Case) -> Result<Vec<Case>, Failed> {
    let few = gpu.is_emulated()? || env::var_os("KVCACHE_FEW_CASES").is_some();
    let case = |seed| Case { name: format!("seed {seed}"), ..draw(&mut Unstructured::seed(seed)) };
    Ok((0..if few { emulated } else { seeds }).map(case).collect())
}

pub fn small_calls(gpu: &Gpu) -> Result<(), Failed> {
    agree(&drawn(gpu, 4000, 400, |entropy| case(Plan::draw(entropy, 12, 12).call(entropy)))?)
}

/// Large enough that warps make several rounds.
pub fn medium_calls(gpu: &Gpu) -> Result<(), Failed> {
    agree(&drawn(gpu, 1000, 32, |entropy| case(Plan::draw(entropy, 40, 40).call(entropy)))?)
}

pub fn large_calls(gpu: &Gpu) -> Result<(), Failed> {
    agree(&drawn(gpu, 144, 4, |entropy| case(Plan::draw(entropy, 80, 400).call(entropy)))?)
}

pub fn static_calls(gpu: &Gpu) -> Result<(), Failed> {
    agree(&drawn(gpu, 2000, 240, |entropy| case(static_call(entropy, 12, 12)))?)
}

/// Keys that are rotated before they are quantized, of every type of cache that has codes.
pub fn rotated_calls(gpu: &Gpu) -> Result<(), Failed> {
    let types: Vec<_> = TypeCombination::all().filter(|types| types.t3.is_some()).collect();
    agree(&drawn(gpu, 1000, 108, |entropy| {
        let plan = Plan::draw(entropy, 12, 8);
        let (types, group) = (entropy.pick(&types), plan.group.next_multiple_of(2));
        let mut call = Plan { types, group, ..plan }.call(entropy);
        call.attributes.insert("quant_rotation", 1);
        // Sums and differences that are not a number have signs of the hardware's.
        Case { any_nan: true, ..call.case() }
    })?)
}

/// One long sequence among many short ones; as many as a block has threads, less, and more.
pub fn ragged_batches(gpu: &Gpu) -> Result<(), Failed> {
    let long = if gpu.is_emulated()? { 50 } else { 3000 };
    let sizes = [255, 256, 257, 511, 512, 513, 1000].into_iter().cycle();
    let ragged = |(seed, (types, batch)): (u64, (TypeCombination, usize))| {
        let mut sequences = vec![(usize::from(batch < 1000), 1); batch];
        sequences[7] = (0, 0);
        sequences[123] = (long, long / 2);
        sequences[batch - 1] = (0, 5);
        let entropy = &mut Unstructured::seed(seed);
        let plan = Plan::draw(entropy, 12, 2);
        let (num_heads, inner, group) = (plan.num_heads.max(1), plan.inner.max(1), plan.group.next_multiple_of(2));
        case(Plan { types, sequences, num_heads, inner, group, ..plan }.call(entropy))
    };
    agree(&(0..).zip(TypeCombination::LEGAL.into_iter().zip(sizes)).map(ragged).collect::<Vec<_>>())
}

/// Elements of a group.
const GROUP: usize = 8;

/// These groups, stored in eight bits and in four; each twice, since [`agree`] makes every other call unaligned, and
/// wide and narrow stores compute codes in two ways.
fn stored(t1: ElementType, groups: &[u8]) -> [Case; 4] {
    let tokens = groups.len() / t1.byte_len(GROUP);
    let current = Tensor::new(t1, vec![tokens, 1, GROUP], groups).expect("whole groups");
    [ElementType::Int8, ElementType::Int8, ElementType::Int4, ElementType::Int4].map(|t2| {
        let zeros = |element, inner| Tensor::zeros(element, vec![tokens, 1, 2, 1, inner]).expect("it fits");
        case(one_head([current.clone(), current.clone()], zeros(t2, GROUP), zeros(t1, 1), GROUP))
    })
}

/// Groups of float16 with each of these largest magnitudes, and in them every value that may be. The kernels multiply
/// by a reciprocal, correct the quotient, and do not clamp: division and clamping give the same codes.
fn float16(magnitudes: impl Iterator<Item = u16>) -> [Case; 4] {
    let mut groups = Vec::new();
    for amax in magnitudes {
        for first in (0..=amax).step_by(GROUP - 1) {
            groups.extend((amax | (first & 1) << 15).to_le_bytes());
            let signed = |x: u16| x.min(amax) | (x & 1) << 15;
            groups.extend((first..first + GROUP as u16 - 1).flat_map(|x| signed(x).to_le_bytes()));
        }
    }
    stored(ElementType::Float16, &groups)
}

const LARGEST_FLOAT16: u16 = 0x7bff;

pub fn float16_samples(_: &Gpu) -> Result<(), Failed> {
    agree(&float16((0..=LARGEST_FLOAT16).step_by(1999).chain(LARGEST_FLOAT16 - 3..=LARGEST_FLOAT16)))
}

/// Every scale and every value: an hour where they are emulated.
pub fn every_float16(_: &Gpu) -> Result<(), Failed> {
    (0..=LARGEST_FLOAT16).step_by(16).try_for_each(|first| agree(&float16(first..first + 16)))
}

/// Largest magnitudes anywhere, near the floor of the scale and near powers of two; values anywhere, and near the ties
/// between two codes, where one unit in the last place decides.
pub fn float32_near_ties(_: &Gpu) -> Result<(), Failed> {
    let entropy = &mut Unstructured::seed(1);
    let groups = (0..30_000).flat_map(|_| {
        let amax = match entropy.below(4) {
            0 => entropy.below(0x7f80_0000) as u32,
            1 => entropy.within(0x3700_0000, 0x4700_0000) as u32,
            2 => (entropy.below(255) << 23) as u32 + entropy.below(16) as u32,
            _ => (entropy.within(1, 255) << 23) as u32 - entropy.within(1, 15) as u32,
        };
        let scale = (f32::from_bits(amax) / entropy.pick(&[127.0, 8.0])).max(1e-5);
        let mut group = [amax; GROUP];
        group[0] |= u32::from(entropy.one_in(2)) << 31;
        for value in &mut group[1..] {
            let tie = (entropy.below(254) as f32 - 126.5) * scale;
            let near = tie.to_bits().wrapping_add_signed(entropy.below(8) as i32 - 4);
            let any = if entropy.one_in(4) { entropy.next() as u32 } else { near };
            *value = if any & 0x7fff_ffff > amax { amax | any & 1 << 31 } else { any };
        }
        group.into_iter().flat_map(u32::to_le_bytes)
    });
    agree(&stored(ElementType::Float32, &groups.collect::<Vec<_>>()))
}
