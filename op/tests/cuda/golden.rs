//! The golden suite.

use std::env;
use std::error::Error;
use std::path::Path;

use kvcache_conformance::backends::cache_attributes;
use kvcache_conformance::{CallResult, Case, Implementation, Step, Suite, Tensor, read_cases, run_cases};
use kvcache_op::KeyValueCache;
use kvcache_op::cuda;
use libtest_mimic::Failed;

use crate::device::{Buffer, Gpu, Outputs, call, outcome, shift};
use crate::host::left_to_device;

/// The golden cases of a suite; with `KVCACHE_GOLDEN_CASES`, a folder of cases, those beside it.
pub fn cases(suite: Suite) -> Result<Vec<Case>, Failed> {
    Ok(match env::var_os("KVCACHE_GOLDEN_CASES") {
        Some(cases) => read_cases(&Path::new(&cases).with_file_name(suite.folder()))?,
        None => kvcache_conformance::cases(suite)?,
    })
}

/// The operator on the GPU as the conformance suite sees it.
struct OnDevice<'a> {
    gpu: &'a Gpu,
    unaligned: bool,
}

/// The results of a case's calls, with cache and scale on the GPU. `call` gives a call's outputs.
pub fn results(
    gpu: &Gpu,
    case: &Case,
    unaligned: bool,
    call: impl Fn(&Step, &mut Buffer, Option<&mut Buffer>) -> Result<Vec<Tensor>, Box<dyn Error>>,
) -> Result<Vec<CallResult>, Box<dyn Error>> {
    let of = |tensor: &Tensor| Buffer::of(gpu, tensor, shift(tensor.element(), unaligned));
    let mut cache = of(case.cache())?;
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
        if let Some(kind) = case.steps.iter().find_map(|step| left_to_device(case, step)) {
            let reason = format!("{kind} is found by the device and reported by the status word, in another test");
            return Ok(vec![CallResult::unsupported(reason)]);
        }
        let results = results(self.gpu, case, self.unaligned, |step, cache, scale| {
            let op = KeyValueCache::new(cache_attributes(&case.attributes)).map_err(cuda::Error::from)?;
            let Outputs { key, value } = call(self.gpu, &op, &step.inputs, (cache, scale), self.unaligned)?;
            Ok(vec![key, value])
        });
        results.map_err(|error| error.to_string())
    }
}

/// Runs the cases of a suite, on what `on_device` makes for tensors that are aligned for their types only, or better.
pub fn pass<I: Implementation>(gpu: &Gpu, all: &[Case], on_device: impl Fn(bool) -> I) -> Result<(), Failed> {
    for unaligned in [false, true] {
        let cases = gpu.some(all.to_vec(), unaligned)?;
        let report = run_cases(&on_device(unaligned), &cases);
        println!("{} passed, {} failed, {} unsupported", report.passed(), report.failed(), report.unsupported());
        if report.failed() > 0 || report.passed() < cases.len() / 2 {
            return Err(report.to_string().into());
        }
    }
    Ok(())
}

pub fn every_case(gpu: &Gpu) -> Result<(), Failed> {
    pass(gpu, &cases(Suite::KeyValueCache)?, |unaligned| OnDevice { gpu, unaligned })
}
