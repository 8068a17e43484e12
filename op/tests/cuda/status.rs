//! The status word: what the kernels find wrong, and what they do all the same.

use kvcache_conformance::backends::cache_attributes;
use kvcache_conformance::{Call, Suite, Tensor};
use kvcache_op::cuda::{Finding, Status};
use kvcache_testing::random::{Plan, Unstructured};
use libtest_mimic::Failed;

use crate::call::{CallOptions, Uploaded};
use crate::device::{Gpu, UNTOUCHED};
use crate::golden::{cases, left_to_device};
use crate::oracle::{difference, expected, slot};

/// Makes a call on the device and compares it with the oracle: outputs, state, and the status.
fn agrees_with_oracle(gpu: &Gpu, call: &Call) -> Result<Option<Status>, String> {
    let options = CallOptions::default();
    let after = Uploaded::new(gpu, call, options).and_then(|uploaded| uploaded.after(call));
    let (after, status) = (after.map_err(|error| error.to_string())?, gpu.status.take());
    let (expected, findings) = expected(call);
    if !status.map_or(findings.is_empty(), |status| findings.contains(&status)) {
        return Err(format!("the device found {status:?}, expected one of {findings:?}"));
    }
    match difference(call, after, expected) {
        Some(difference) => Err(format!("{difference}; the device found {status:?}")),
        None => Ok(status),
    }
}

pub fn golden_cases_that_the_host_cannot_refuse(gpu: &Gpu) -> Result<(), Failed> {
    let (mut found, mut unseen) = (0, Vec::new());
    for case in cases(Suite::KeyValueCache)? {
        for step in 0..case.steps.len() {
            let Some(kind) = left_to_device(&case, step) else { continue };
            let call = case.call(step);
            let too_large = call.inputs["kvstarts"].indices().last().is_some_and(|&rows| rows > 1 << 20);
            if kind == "write_conflict" || race(&call) {
                unseen.push(format!("{} (two tokens race for a slot)", case.name));
            } else if too_large {
                unseen.push(format!("{} (its outputs cannot be allocated)", case.name));
            } else {
                match agrees_with_oracle(gpu, &call).map_err(|error| format!("{}: {error}", case.name))? {
                    Some(_) => found += 1,
                    None => unseen.push(format!("{} ({kind})", case.name)),
                }
            }
        }
    }
    println!("{found} found; not found, as documented: {}", unseen.join(", "));
    if found < 10 { Err(format!("only {found} cases are found by the device").into()) } else { Ok(()) }
}

pub fn random_bad_indices(gpu: &Gpu) -> Result<(), Failed> {
    // Of every third change or so, the input is not `cachestarts`.
    const INPUTS: [&str; 6] = ["seqstarts", "start_pos", "cachestarts", "cachestarts", "cachestarts", "cachestarts"];
    let mut seen = 0;
    for seed in 0..300 {
        let entropy = &mut Unstructured::seed(seed);
        let mut call = Plan::draw(entropy, 6, 12).call(entropy);
        for _ in 0..entropy.within(1, 3) {
            let near = entropy.below(103) as i64 - 3;
            let bad = entropy.pick(&[-1, i64::MIN, i64::MAX, 1 << 40, near]);
            let tensor = call.inputs.get_mut(entropy.pick(&INPUTS)).expect("an index input");
            let mut values = tensor.indices();
            if !values.is_empty() {
                let at = entropy.below(values.len());
                values[at] = bad;
                *tensor = Tensor::of_indices(&values, tensor.shape());
            }
        }
        if !race(&call) {
            let status = agrees_with_oracle(gpu, &call).map_err(|error| format!("seed {seed}: {error}"))?;
            seen += usize::from(status.is_some());
        }
    }
    println!("{seen} calls with a finding");
    if seen < 20 { Err(format!("only {seen} calls had a finding").into()) } else { Ok(()) }
}

/// Whether two current tokens have one slot, which the device does not find.
fn race(call: &Call) -> bool {
    let [seqstarts, start_pos] = ["seqstarts", "start_pos"].map(|name| call.inputs[name].indices());
    let falls = seqstarts.windows(2).any(|pair| pair[1] < pair[0]);
    let total = seqstarts.last().copied().unwrap_or_default();
    if seqstarts[0] != 0 || falls || total > call.inputs["current_key"].shape()[0] as i64 {
        return false; // nothing is stored
    }
    let attributes = cache_attributes(&call.attributes);
    let mut slots = Vec::new();
    for (b, &start) in start_pos.iter().enumerate().filter(|(_, start)| **start >= 0) {
        let tokens = i128::from(start)..i128::from(start) + i128::from(seqstarts[b + 1] - seqstarts[b]);
        slots.extend(tokens.filter_map(|token| slot(&attributes, call, b, token).ok()));
    }
    slots.sort_unstable();
    slots.windows(2).any(|pair| pair[0] == pair[1])
}

pub fn keeps_the_first_finding(gpu: &Gpu) -> Result<(), Failed> {
    let cases = cases(Suite::KeyValueCache)?;
    let case = cases.iter().find(|case| case.name.starts_with("refuse-page-range"));
    let mut call = case.ok_or("there is no golden case of a page out of range")?.call(0);
    let run = |call: &Call| Uploaded::new(gpu, call, CallOptions::default())?.run(call);
    run(&call)?;
    let first = gpu.status.get().ok_or("nothing was found")?;
    assert_eq!(first.finding, Finding::Slot);
    // Something else, later.
    let start_pos = &call.inputs["start_pos"];
    let negative = Tensor::of_indices(&vec![-1; start_pos.indices().len()], start_pos.shape());
    call.inputs.insert("start_pos", negative);
    run(&call)?;
    assert_eq!(gpu.status.get(), Some(first), "the first finding stays");
    assert_eq!(gpu.status.take(), Some(first));
    assert_eq!(gpu.status.get(), None);
    run(&call)?;
    let second = gpu.status.take().ok_or("nothing was found after the word was cleared")?;
    assert_eq!(second.finding, Finding::StartPos);
    Ok(())
}

type Change = (&'static str, fn(&mut Vec<i64>));

/// Attention finds wrong lengths and slots, too. With a wrong length nothing is written; a key with a wrong slot takes
/// no part.
pub fn attention_that_the_host_cannot_refuse(gpu: &Gpu) -> Result<(), Failed> {
    let checks: [(&str, Change, Finding, bool); 5] = [
        ("packed-causal1-decoding0", ("seqstarts", |starts| starts[0] = 1), Finding::Seqstarts, false),
        ("packed-causal1-decoding0", ("kvstarts", |starts| starts[1] = -1), Finding::Kvstarts, false),
        ("layout0-paged-f32-f32", ("start_pos", |start_pos| start_pos[0] = -1), Finding::StartPos, false),
        ("layout0-paged-f32-f32", ("cachestarts", |starts| starts[0] = 1 << 40), Finding::Slot, true),
        ("layout0-offset-f16-f16", ("cachestarts", |starts| starts[0] = -7), Finding::Slot, true),
    ];
    let cases = cases(Suite::Attention)?;
    for (name, (input, change), finding, writes) in checks {
        let case = cases.iter().find(|case| case.name == name).ok_or(format!("there is no golden case {name}"))?;
        let mut call = case.call(0);
        let tensor = call.inputs.get_mut(input).ok_or("there is no such input")?;
        let mut values = tensor.indices();
        change(&mut values);
        *tensor = Tensor::of_indices(&values, tensor.shape());
        let outputs = Uploaded::new(gpu, &call, CallOptions::default())?.run(&call)?;
        let status = gpu.status.take().ok_or(format!("{name}: nothing was found"))?;
        assert_eq!(status.finding, finding, "{name}");
        let untouched = outputs[0].bytes().iter().all(|&byte| byte == UNTOUCHED);
        assert_eq!(untouched, !writes, "{name}");
    }
    Ok(())
}
