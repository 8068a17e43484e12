//! The golden suite.

use std::env;
use std::error::Error;
use std::path::Path;

use kvcache_conformance::{CallResult, Case, Implementation, Outcome, read_cases, run};
use kvcache_op::KeyValueCache;
use kvcache_op::cuda;
use libtest_mimic::Failed;

use crate::device::{Buffer, Gpu, call, shift};
use crate::device_check::left_to_device;

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
            let outcome = KeyValueCache::new(case.attributes.clone())
                .map_err(|error| cuda::Error::from(error).into())
                .and_then(|op| call(self.gpu, &op, &step.inputs, (&mut cache, scale.as_mut()), self.unaligned));
            let outcome = match outcome.map_err(|error: Box<dyn Error>| error.downcast::<cuda::Error>()) {
                Ok(outputs) => Outcome::Done(outputs),
                Err(Ok(error)) if matches!(*error, cuda::Error::Operator(_)) => {
                    Outcome::Refused { kind: Some(error.kind().to_owned()), message: error.to_string() }
                }
                Err(Ok(error)) => return Err(error),
                Err(Err(error)) => return Err(error),
            };
            if let Some(status) = self.gpu.status.take() {
                return Err(format!("the device found something wrong: {status}").into());
            }
            let scale = scale.as_ref().map(|scale| scale.download(self.gpu)).transpose()?;
            results.push(CallResult { outcome, cache: cache.download(self.gpu)?, scale });
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

fn all_cases_pass(gpu: &Gpu, unaligned: bool) -> Result<(), Failed> {
    let cases = cases()?;
    let report = run(&OnDevice { gpu, unaligned }, &cases);
    println!("{} passed, {} failed, {} unsupported", report.passed(), report.failed(), report.unsupported());
    if report.failed() > 0 || report.passed() < cases.len() / 2 {
        return Err(report.to_string().into());
    }
    Ok(())
}

pub fn every_case(gpu: &Gpu) -> Result<(), Failed> {
    all_cases_pass(gpu, false)
}

pub fn every_case_unaligned(gpu: &Gpu) -> Result<(), Failed> {
    all_cases_pass(gpu, true)
}
