//! The golden suite.

use std::env;
use std::error::Error;
use std::path::Path;

use kvcache_conformance::{CallResult, Case, Implementation, Step, Suite, Tensor, read_cases, run};
use kvcache_op::KeyValueCache;
use kvcache_op::cuda;
use libtest_mimic::Failed;

use crate::device::{Buffer, Gpu, Outputs, call, outcome, shift};
use crate::host::left_to_device;

pub fn cases() -> Result<Vec<Case>, Failed> {
    Ok(match env::var_os("KVCACHE_GOLDEN_CASES") {
        Some(folder) => read_cases(Path::new(&folder))?,
        None => kvcache_conformance::cases()?,
    })
}

/// The operator on the GPU as the conformance suite sees it.
struct OnDevice<'a> {
    gpu: &'a Gpu,
    unaligned: bool,
}

/// The results of a case's calls, with cache and scale on the GPU. `call` gives a call's outputs.
pub fn results<A, I>(
    gpu: &Gpu,
    case: &Case<A, I>,
    unaligned: bool,
    call: impl Fn(&Step<I>, &mut Buffer, Option<&mut Buffer>) -> Result<Vec<Tensor>, Box<dyn Error>>,
) -> Result<Vec<CallResult>, Box<dyn Error>> {
    let of = |tensor: &Tensor| Buffer::of(gpu, tensor, shift(tensor.element(), unaligned));
    let mut cache = of(&case.cache)?;
    let mut scale = case.scale.as_ref().map(of).transpose()?;
    let mut results = Vec::new();
    for step in &case.steps {
        let outcome = outcome(call(step, &mut cache, scale.as_mut()))?;
        gpu.nothing_found()?;
        let scale = scale.as_ref().map(|scale| scale.download(gpu)).transpose()?;
        results.push(CallResult { outcome, cache: Some(cache.download(gpu)?), scale });
    }
    Ok(results)
}

impl Implementation for OnDevice<'_> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let results = results(self.gpu, case, self.unaligned, |step, cache, scale| {
            let op = KeyValueCache::new(case.attributes.clone()).map_err(cuda::Error::from)?;
            let Outputs { key, value } = call(self.gpu, &op, &step.inputs, (cache, scale), self.unaligned)?;
            Ok(vec![key, value])
        });
        results.map_err(|error| error.to_string())
    }

    fn cannot_run(&self, case: &Case) -> Option<String> {
        let kind = case.steps.iter().find_map(|step| left_to_device(case, step))?;
        Some(format!("{kind} is found by the device and reported by the status word, in another test"))
    }
}

/// Runs the cases of a suite, on what `on_device` makes for tensors that are aligned for their types only, or better.
pub fn pass<C: Suite, I: Implementation<C>>(
    gpu: &Gpu,
    cases: fn() -> Result<Vec<C>, Failed>,
    on_device: impl Fn(bool) -> I,
) -> Result<(), Failed> {
    for unaligned in [false, true] {
        let cases = gpu.some(cases()?, unaligned)?;
        let report = run(&on_device(unaligned), &cases);
        println!("{} passed, {} failed, {} unsupported", report.passed(), report.failed(), report.unsupported());
        if report.failed() > 0 || report.passed() < cases.len() / 2 {
            return Err(report.to_string().into());
        }
    }
    Ok(())
}

pub fn every_case(gpu: &Gpu) -> Result<(), Failed> {
    pass(gpu, cases, |unaligned| OnDevice { gpu, unaligned })
}
