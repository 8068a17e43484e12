//! The device gives the reference's bits.

use std::env;

use kvcache_op::schema::TypeCombination;
use kvcache_op::{Backend, Serial};
use kvcache_testing::random::{Plan, RandomCall, calls, plans};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::call::{How, Uploaded, difference};
use crate::device::Gpu;

/// Tests so many values; fails with the one that fails.
pub fn each<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value) -> Result<(), String>) -> Result<(), Failed> {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&strategy, |value| test(value).map_err(TestCaseError::fail));
    outcome.map_err(|error| error.to_string().into())
}

fn agree(gpu: &Gpu, strategy: impl Strategy<Value = RandomCall>, cases: u32) -> Result<(), Failed> {
    each(cases, (strategy, any::<bool>()), |(call, unaligned)| {
        let how = How { unaligned, ..How::default() };
        let got = Uploaded::new(gpu, &call, how).and_then(|uploaded| uploaded.after(gpu, &call, how));
        let got = got.and_then(|got| gpu.nothing_found().map(|()| got)).map_err(|error| error.to_string())?;
        let differs = difference(&got, &call.run_on(Backend::Reference, &Serial));
        differs.map_or(Ok(()), |name| Err(format!("{name} differs")))
    })
}

/// More calls on a GPU than where every thread is emulated or watched.
fn many(gpu: &Gpu, cases: u32) -> Result<u32, Failed> {
    let few = gpu.is_emulated()? || env::var_os("KVCACHE_FEW_CASES").is_some();
    Ok(if few { cases.div_ceil(48) } else { cases })
}

pub fn small_calls(gpu: &Gpu) -> Result<(), Failed> {
    agree(gpu, calls(12, 12), many(gpu, 4000)?)
}

pub fn large_calls(gpu: &Gpu) -> Result<(), Failed> {
    agree(gpu, calls(80, 400), many(gpu, 48)?)
}

fn calls_of(types: TypeCombination, sequences: Vec<(usize, usize)>) -> impl Strategy<Value = RandomCall> {
    plans(12, 2).prop_perturb(move |plan, mut rng| {
        let plan = Plan {
            types,
            sequences: sequences.clone(),
            num_heads: plan.num_heads.max(1),
            inner: plan.inner.max(1),
            group: plan.group.next_multiple_of(2),
            ..plan
        };
        RandomCall::new(&plan, &mut rng)
    })
}

/// One long sequence among many short ones; as many as a block has threads, less, and more.
pub fn ragged_batches(gpu: &Gpu) -> Result<(), Failed> {
    let long = if gpu.is_emulated()? { 50 } else { 3000 };
    let sizes = [255, 256, 257, 511, 512, 513, 1000].into_iter().cycle();
    for (types, batch) in TypeCombination::LEGAL.into_iter().zip(sizes) {
        let mut sequences = vec![(usize::from(batch < 1000), 1); batch];
        sequences[7] = (0, 0);
        sequences[123] = (long, long / 2);
        sequences[batch - 1] = (0, 5);
        agree(gpu, calls_of(types, sequences), 1)?;
    }
    Ok(())
}
