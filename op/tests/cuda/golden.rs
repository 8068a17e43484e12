//! The golden suite.

use std::env;
use std::error::Error;
use std::path::Path;

use kvcache_conformance::{CallResult, Case, Implementation, read_cases, run};
use kvcache_op::KeyValueCache;
use kvcache_op::cuda;
use libtest_mimic::Failed;

use crate::device::{Buffer, Gpu, Outputs, call, outcome, shift};
use crate::host::left_to_device;

/// The golden cases.
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

impl OnDevice<'_> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, Box<dyn Error>> {
        let of = |tensor| Buffer::of(self.gpu, tensor, shift(tensor.element(), self.unaligned));
        let mut cache = of(&case.cache)?;
        let mut scale = case.scale.as_ref().map(of).transpose()?;
        let mut results = Vec::new();
        for step in &case.steps {
            let outputs = KeyValueCache::new(case.attributes.clone())
                .map_err(|error| cuda::Error::from(error).into())
                .and_then(|op| call(self.gpu, &op, &step.inputs, (&mut cache, scale.as_mut()), self.unaligned));
            let outcome = outcome(outputs)?.map(|Outputs { key, value }| vec![key, value]);
            self.gpu.nothing_found()?;
            let scale = scale.as_ref().map(|scale| scale.download(self.gpu)).transpose()?;
            results.push(CallResult { outcome, cache: Some(cache.download(self.gpu)?), scale });
        }
        Ok(results)
    }
}

impl Implementation for OnDevice<'_> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        self.run(case).map_err(|error| error.to_string())
    }

    fn cannot_run(&self, case: &Case) -> Option<String> {
        let kind = case.steps.iter().find_map(|step| left_to_device(case, step))?;
        Some(format!("{kind} is found by the device and reported by the status word, in another test"))
    }
}

pub fn every_case(gpu: &Gpu) -> Result<(), Failed> {
    for unaligned in [false, true] {
        let cases = gpu.some(cases()?, unaligned)?;
        let report = run(&OnDevice { gpu, unaligned }, &cases);
        println!("{} passed, {} failed, {} unsupported", report.passed(), report.failed(), report.unsupported());
        if report.failed() > 0 || report.passed() < cases.len() / 2 {
            return Err(report.to_string().into());
        }
    }
    Ok(())
}
