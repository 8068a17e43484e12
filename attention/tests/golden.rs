//! The kernels pass every golden case of a legal call. Refusals are `kvcache-op`'s, which makes the calls that it has
//! checked.

#[path = "common/call.rs"]
mod call;
#[path = "common/kernels.rs"]
mod kernels;

use call::{State, attend};
use kernels::kernels;
use kvcache_attention::AttentionKernel;
use kvcache_conformance::attention::{CallResult, Case, Implementation, cases, run};
use kvcache_conformance::{Expected, Outcome};

/// A kernel as the conformance suite sees it.
struct Attention<'a>(&'a dyn AttentionKernel);

impl Implementation for Attention<'_> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let mut state = State { cache: case.cache.clone(), scale: case.scale.clone() };
        let calls = case.steps.iter().map(|step| {
            let outcome = Outcome::Done(attend(self.0, &case.attributes, &step.inputs, &mut state));
            CallResult { outcome, cache: state.cache.clone(), scale: state.scale.clone() }
        });
        Ok(calls.collect())
    }

    fn cannot_run(&self, case: &Case) -> Option<String> {
        let refused = case.steps.iter().any(|step| matches!(step.expected, Expected::Refusal { .. }));
        refused.then(|| "a kernel gets legal calls alone".to_owned())
    }
}

#[test]
fn every_kernel_passes() {
    let cases = cases().expect("the golden cases can be read");
    for kernel in kernels() {
        let report = run(&Attention(&*kernel), &cases);
        assert!(report.failed() == 0, "{}: {report}", kernel.name());
        assert!(report.passed() > 200, "{}: {report}", kernel.name());
    }
}
