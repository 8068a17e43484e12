//! The status word: what the kernels find wrong, and what they do all the same.

use kvcache_conformance::backends::cache_attributes;
use kvcache_conformance::{Suite, Tensor, Tensors};
use kvcache_op::cuda::{Finding, Status};
use kvcache_op::{Attributes, KeyValueCache};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use crate::device::{Buffer, Gpu, Outputs, call};
use crate::golden::cases;
use crate::host::left_to_device;
use crate::oracle::{Oracle, numbers};
use kvcache_testing::random::calls;

/// Makes a call on the device and compares it with the oracle: outputs, state, and the status.
fn agrees_with_oracle(
    gpu: &Gpu,
    attributes: &Attributes,
    inputs: &Tensors,
    state: (&Tensor, Option<&Tensor>),
) -> Result<Option<Status>, Failed> {
    let op = KeyValueCache::new(attributes.clone())?;
    let mut cache = Buffer::of(gpu, state.0, 0)?;
    let mut scale = state.1.map(|scale| Buffer::of(gpu, scale, 0)).transpose()?;
    let Outputs { key, value } = call(gpu, &op, inputs, (&mut cache, scale.as_mut()), false)?;
    let status = gpu.status.take();

    let (mut expected_cache, mut expected_scale) = (state.0.clone(), state.1.cloned());
    let oracle = Oracle { attributes, inputs, cache: &mut expected_cache, scale: expected_scale.as_mut() };
    let (outputs, findings) = oracle.run();
    match status {
        None if findings.is_empty() => {}
        Some(status) if findings.contains(&status) => {}
        _ => return Err(format!("the device found {status:?}, expected one of {findings:?}").into()),
    }
    let scale = scale.map(|scale| scale.download(gpu)).transpose()?;
    let same = [
        ("cache", cache.download(gpu)? == expected_cache),
        ("scale", scale == expected_scale),
        ("key", key == outputs.key),
        ("value", value == outputs.value),
    ];
    match same.into_iter().find(|(_, same)| !same) {
        Some((name, _)) => Err(format!("{name} differs from the oracle's; the device found {status:?}").into()),
        None => Ok(status),
    }
}

pub fn golden_cases_that_the_host_cannot_refuse(gpu: &Gpu) -> Result<(), Failed> {
    let (mut found, mut unseen) = (0, Vec::new());
    for case in cases(Suite::KeyValueCache)? {
        let (attributes, cache, scale) = (&cache_attributes(&case.attributes), case.cache(), &case.scale);
        for step in &case.steps {
            let Some(kind) = left_to_device(&case, step) else { continue };
            if kind == "write_conflict" || race(attributes, &step.inputs) {
                unseen.push(format!("{} (two tokens race for a slot)", case.name));
                continue;
            }
            if numbers(&step.inputs["kvstarts"]).last().is_some_and(|&rows| rows > 1 << 20) {
                unseen.push(format!("{} (its outputs cannot be allocated)", case.name));
                continue;
            }
            let status = agrees_with_oracle(gpu, attributes, &step.inputs, (cache, scale.as_ref()))
                .map_err(|error| format!("{}: {}", case.name, error.message().unwrap_or_default()))?;
            match status {
                Some(_) => found += 1,
                None => unseen.push(format!("{} ({kind})", case.name)),
            }
        }
    }
    println!("{found} found; not found, as documented: {}", unseen.join(", "));
    if found < 10 {
        return Err(format!("only {found} cases are found by the device").into());
    }
    Ok(())
}

pub fn random_bad_indices(gpu: &Gpu) -> Result<(), Failed> {
    let bad = prop_oneof![Just(-1i64), Just(i64::MIN), Just(i64::MAX), Just(1 << 40), -3..100i64];
    // Of every third change or so, the input is not `cachestarts`.
    let change = (0..6usize, any::<prop::sample::Index>(), bad);
    let broken = (calls(6, 12), prop::collection::vec(change, 1..4));
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let seen = std::cell::Cell::new(0);
    let outcome = runner.run(&broken, |(call, changes)| {
        let (attributes, mut inputs) = (cache_attributes(&call.attributes), call.inputs.clone());
        for (input, index, value) in changes {
            let tensor = match input {
                0 => inputs.get_mut("seqstarts").unwrap(),
                1 => inputs.get_mut("start_pos").unwrap(),
                _ => inputs.get_mut("cachestarts").unwrap(),
            };
            let mut values = numbers(tensor);
            if !values.is_empty() {
                let at = index.index(values.len());
                values[at] = value;
                *tensor = of_numbers(&values, tensor.shape());
            }
        }
        if race(&attributes, &inputs) {
            return Ok(());
        }
        match agrees_with_oracle(gpu, &attributes, &inputs, (call.cache(), call.scale.as_ref())) {
            Ok(status) => {
                seen.set(seen.get() + usize::from(status.is_some()));
                Ok(())
            }
            Err(error) => Err(TestCaseError::fail(error.message().unwrap_or_default().to_owned())),
        }
    });
    println!("{} calls with a finding", seen.get());
    match outcome {
        Ok(()) if seen.get() >= 20 => Ok(()),
        Ok(()) => Err(format!("only {} calls had a finding", seen.get()).into()),
        Err(TestError::Fail(reason, (call, changes))) => Err(format!("{reason}\n{changes:?}\n{call:?}").into()),
        Err(error) => Err(error.to_string().into()),
    }
}

/// Whether two current tokens have one slot.
fn race(attributes: &Attributes, inputs: &Tensors) -> bool {
    let [seqstarts, start_pos, starts] =
        [&inputs["seqstarts"], &inputs["start_pos"], &inputs["cachestarts"]].map(numbers);
    let falls = seqstarts.windows(2).any(|pair| pair[1] < pair[0]);
    let total = seqstarts.last().copied().unwrap_or_default();
    if seqstarts[0] != 0 || falls || total > inputs["current_key"].shape()[0] as i64 {
        return false; // nothing is stored
    }
    let columns = if attributes.cache_mode == 0 { 1 } else { inputs["cachestarts"].shape()[1] };
    let page_size = if attributes.cache_mode == 0 { i64::MAX } else { attributes.page_size };
    let mut slots = Vec::new();
    for (b, &start) in start_pos.iter().enumerate() {
        for token in (0..seqstarts[b + 1] - seqstarts[b]).filter_map(|t| start.checked_add(t)) {
            let page = (token / page_size) as usize;
            if token >= 0 && page < columns {
                slots.push(i128::from(starts[b * columns + page]) + i128::from(token % page_size));
            }
        }
    }
    slots.sort_unstable();
    slots.windows(2).any(|pair| pair[0] == pair[1])
}

pub fn of_numbers(numbers: &[i64], shape: &[usize]) -> Tensor {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Tensor::new(kvcache_op::ElementType::Int64, shape.to_vec(), &bytes).expect("the bytes of its shape")
}

pub fn keeps_the_first_finding(gpu: &Gpu) -> Result<(), Failed> {
    let cases = cases(Suite::KeyValueCache)?;
    let case = cases.iter().find(|case| case.name.starts_with("refuse-page-range"));
    let case = case.ok_or("there is no golden case of a page out of range")?;
    let op = KeyValueCache::new(cache_attributes(&case.attributes))?;
    let mut cache = Buffer::of(gpu, case.cache(), 0)?;
    let mut scale = case.scale.as_ref().map(|scale| Buffer::of(gpu, scale, 0)).transpose()?;
    let mut inputs = case.steps[0].inputs.clone();
    call(gpu, &op, &inputs, (&mut cache, scale.as_mut()), false)?;
    let first = gpu.status.get().ok_or("nothing was found")?;
    assert_eq!(first.finding, Finding::Slot);
    // Something else, later.
    let start_pos = &inputs["start_pos"];
    inputs.insert("start_pos", of_numbers(&vec![-1; numbers(start_pos).len()], start_pos.shape()));
    call(gpu, &op, &inputs, (&mut cache, scale.as_mut()), false)?;
    assert_eq!(gpu.status.get(), Some(first), "the first finding stays");
    assert_eq!(gpu.status.take(), Some(first));
    assert_eq!(gpu.status.get(), None);
    call(gpu, &op, &inputs, (&mut cache, scale.as_mut()), false)?;
    let second = gpu.status.take().ok_or("nothing was found after the word was cleared")?;
    assert_eq!(second.finding, Finding::StartPos);
    Ok(())
}
