//! The device gives the reference's bits.

use std::env;
use std::error::Error;

use kvcache_conformance::Tensor;
use kvcache_conformance::backends::cache_attributes;
use kvcache_op::schema::TypeCombination;
use kvcache_op::{Backend, KeyValueCache, Serial};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use crate::device::{Buffer, Gpu, call, shift};
use kvcache_testing::random::{After, Plan, RandomCall, calls, plans};

pub fn reference(call: &RandomCall) -> After {
    call.run_on(Backend::Reference, &Serial)
}

fn on_device(gpu: &Gpu, random: &RandomCall, unaligned: bool) -> Result<After, Box<dyn Error>> {
    let of = |tensor: &Tensor| Buffer::of(gpu, tensor, shift(tensor.element(), unaligned));
    let mut cache = of(random.cache())?;
    let mut scale = random.scale.as_ref().map(of).transpose()?;
    let op = KeyValueCache::new(cache_attributes(&random.attributes))?;
    let outputs = call(gpu, &op, &random.inputs, (&mut cache, scale.as_mut()), unaligned)?;
    gpu.nothing_found()?;
    let scale = scale.map(|scale| scale.download(gpu)).transpose()?;
    Ok(After { key: outputs.key, value: outputs.value, cache: cache.download(gpu)?, scale })
}

fn agree(gpu: &Gpu, strategy: impl Strategy<Value = RandomCall>, cases: u32) -> Result<(), Failed> {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&(strategy, any::<bool>()), |(call, unaligned)| {
        let got = on_device(gpu, &call, unaligned).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let expected = reference(&call);
        let same = [
            ("key", got.key == expected.key),
            ("value", got.value == expected.value),
            ("cache", got.cache == expected.cache),
            ("scale", got.scale == expected.scale),
        ];
        match same.into_iter().find(|(_, same)| !same) {
            Some((name, _)) => Err(TestCaseError::fail(format!("{name} differs"))),
            None => Ok(()),
        }
    });
    outcome.map_err(|error| match error {
        TestError::Fail(reason, (call, unaligned)) => format!("{reason}, unaligned: {unaligned}\n{call:?}").into(),
        TestError::Abort(reason) => reason.to_string().into(),
    })
}

/// More calls on a GPU than where every thread is emulated or watched.
fn many(gpu: &Gpu, cases: u32) -> Result<u32, Box<dyn Error>> {
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
