//! Mutation testing: attention kernels with one bug each fail a golden case, or violate the rules for kernels.

// A sanitizer ends the process at a mutant's bug.
#![cfg(not(feature = "sanitize"))]

#[path = "../../../attention/tests/common/call.rs"]
mod call;

use std::panic::{AssertUnwindSafe, catch_unwind};

use call::{State, attend};
use kvcache_conformance::attention::{CallResult, Case, Implementation, cases, run};
use kvcache_conformance::{Expected, Outcome};
use kvcache_emulation_kernels::{ATTENTION_MUTANTS, Build, EmulatedAttention, Order};
use kvcache_op::ElementType;

/// Kernels for one combination of types.
struct Partial(EmulatedAttention, &'static Build);

impl Implementation for Partial {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let mut state = State { cache: case.cache.clone(), scale: case.scale.clone() };
        let calls = case.steps.iter().map(|step| {
            let call = || attend(&self.0, &case.attributes, &step.inputs, &mut state);
            let output = catch_unwind(AssertUnwindSafe(call)).map_err(|_| "the kernel failed".to_owned())?;
            let outcome = Outcome::Done(output);
            Ok(CallResult { outcome, cache: state.cache.clone(), scale: state.scale.clone() })
        });
        calls.collect()
    }

    fn cannot_run(&self, case: &Case) -> Option<String> {
        let refused = case.steps.iter().any(|step| matches!(step.expected, Expected::Refusal { .. }));
        let t2 = case.cache.as_ref().map_or(case.t1, |cache| cache.element());
        let t3 = case.scale.as_ref().filter(|_| case.attributes.cache.quant_bit != 0).map(|scale| scale.element());
        let types: Vec<_> = [Some(case.t1), Some(t2), t3].into_iter().flatten().map(ElementType::short_name).collect();
        (refused || types.join("_") != self.1.types).then(|| "other types, or a refusal".to_owned())
    }
}

/// How often the golden cases fail on kernels.
fn failures(build: &'static Build) -> usize {
    let cases = cases().expect("the golden cases can be read");
    let devices = [(Order::Forward, usize::MAX), (Order::Backward, 0)];
    let count = devices.map(|(order, max_seqlen)| {
        let kernel = EmulatedAttention { build: Some(build), order, max_seqlen, ..EmulatedAttention::default() };
        let report = run(&Partial(kernel, build), &cases);
        assert!(report.passed() + report.failed() > 2, "{build:?}: no case has its types");
        report.failed()
    });
    count.into_iter().sum()
}

#[test]
fn every_mutant_fails_a_case() {
    let survivors: Vec<_> = ATTENTION_MUTANTS.iter().filter(|mutant| failures(mutant) == 0).collect();
    assert!(survivors.is_empty(), "{survivors:?}");
}
