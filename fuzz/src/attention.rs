//! Calls of attention, legal and illegal: golden ones with an input changed. All backends refuse the same calls for the
//! same reason and leave the same cache; all instruction sets with fused multiply-adds give the same bits, on any number
//! of threads.

use std::sync::LazyLock;

use kvcache_conformance::backends::Backends;
use kvcache_conformance::random::{Unstructured, changed_input};
use kvcache_conformance::{Case, Implementation, Outcome, Suite, cases};
use kvcache_op::{AttentionBackend, Backend};
use kvcache_testing::backends::Careless;

use crate::tally;

static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| cases(Suite::Attention).expect("the golden cases can be read"));

pub fn run(bytes: &[u8]) {
    let entropy = &mut Unstructured::bytes(bytes);
    let parallel = entropy.one_in(2);
    let mut case = CASES[entropy.below(CASES.len())].clone();
    if !entropy.one_in(4) {
        let step = entropy.below(case.steps.len());
        let inputs = &mut case.steps[step].inputs;
        let names: Vec<_> = inputs.keys().copied().collect();
        let name = entropy.pick(&names);
        inputs.insert(name, changed_input(entropy, &inputs[name]));
    }
    let (mut first, mut fused) = (None, None);
    for (i, attention) in AttentionBackend::all().enumerate() {
        let attention = match attention {
            AttentionBackend::Cpu(cpu) if parallel => AttentionBackend::Cpu(cpu.with_parallel_cost(0)),
            other => other,
        };
        let backend = if i == 0 { Backend::Reference } else { Backend::default() };
        let run = |workers| Backends { backend, attention, workers }.run(&case).expect("a case that can be run");
        let (results, again) = (run(Careless(3)), run(Careless(2)));
        assert!(results == again, "{}: bits depend on the number of threads", attention.name());
        // Those with fused multiply-adds.
        if !["reference", "cpu-portable"].contains(&attention.name()) {
            let first = fused.get_or_insert_with(|| results.clone());
            assert!(*first == results, "{} gives other bits than another instruction set", attention.name());
        }
        let tell = results.into_iter().map(|result| match result.outcome {
            Outcome::Done(_) => (None, result.cache, result.scale),
            other => (Some(other), result.cache, result.scale),
        });
        let tell: Vec<_> = tell.collect();
        tally::count(tell.iter().all(|(refusal, ..)| refusal.is_none()));
        let first = first.get_or_insert_with(|| tell.clone());
        assert!(*first == tell, "{} refuses other calls than the reference, or stores otherwise", attention.name());
    }
}
