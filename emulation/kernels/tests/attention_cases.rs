//! The attention kernels pass every golden case of a legal call.

#[path = "../../../attention/tests/common/call.rs"]
mod call;

use std::collections::BTreeSet;
use std::sync::Mutex;

use call::{State, attend};
use kvcache_attention::AttentionKernel;
use kvcache_attention::cuda::MODULES;
use kvcache_conformance::attention::{CallResult, Case, Implementation, cases, run};
use kvcache_conformance::{Expected, Outcome};
use kvcache_emulation_kernels::EmulatedAttention;
#[cfg(not(feature = "sanitize"))]
use kvcache_emulation_kernels::Order;

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

fn all_cases_pass(kernel: EmulatedAttention) {
    let report = run(&Attention(&kernel), &cases().expect("the golden cases can be read"));
    println!("{kernel:?}: {report}");
    assert!(report.failed() == 0, "{kernel:?}: {report}");
    assert!(report.passed() > 200, "{report}");
}

/// Together the two launch every kernel that attends.
#[test]
fn aligned_and_unaligned() {
    static LAUNCHED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    for unaligned in [false, true] {
        all_cases_pass(EmulatedAttention { unaligned, launched: Some(&LAUNCHED), ..EmulatedAttention::default() });
    }
    let launched = LAUNCHED.lock().unwrap();
    let kernels = MODULES.iter().flat_map(|module| &module.kernels[..2]);
    let missing: Vec<_> = kernels.filter(|&kernel| !launched.contains(kernel)).collect();
    assert!(missing.is_empty(), "{missing:?} are not launched");
}

/// No sequence of more than one token is a decoding step.
#[cfg(not(feature = "sanitize"))] // the sanitizers see the same accesses above
#[test]
fn last_thread_first() {
    all_cases_pass(EmulatedAttention { order: Order::Backward, max_seqlen: 0, ..EmulatedAttention::default() });
}

#[cfg(not(feature = "sanitize"))]
#[test]
fn any_order_on_a_large_device() {
    all_cases_pass(EmulatedAttention {
        order: Order::Random(1),
        multiprocessors: 100,
        max_seqlen: 3,
        ..EmulatedAttention::default()
    });
}
