//! Calls of attention. The cache is as the oracle stores it, bit for bit, and the output near the oracle's in float64;
//! all instruction sets with fused multiply-adds give the same bits, on any number of threads.

use kvcache_conformance::backends::Attention;
use kvcache_conformance::random::{Entropy, attention_case};
use kvcache_conformance::{Implementation, Outcome};
use kvcache_op::{AttentionBackend, Backend};
use kvcache_testing::backends::Careless;

use crate::tally::{self, Kindless};

pub fn run(bytes: &[u8]) {
    let entropy = &mut Entropy::bytes(bytes);
    let parallel = entropy.one_in(2);
    let case = attention_case(entropy);
    let mut fused = None;
    for (i, backend) in AttentionBackend::all().enumerate() {
        let backend = match backend {
            AttentionBackend::Cpu(cpu) if parallel => AttentionBackend::Cpu(cpu.with_parallel_cost(0)),
            other => other,
        };
        let store = if i == 0 { Backend::Reference } else { Backend::default() };
        let attention = Attention { backend, store, workers: Careless(3) };
        tally::passes(&Kindless(Attention { workers: Careless(2), ..attention }), &case);
        // Those with fused multiply-adds.
        if !["reference", "cpu-portable"].contains(&backend.name()) {
            let attention = Attention { backend, store, workers: Careless(3) };
            let results = attention.run(&case).expect("a case that can be run");
            let output = match &results[0].outcome {
                Outcome::Done(outputs) => outputs[0].bytes().to_vec(),
                Outcome::Refused { .. } => Vec::new(),
            };
            let first = fused.get_or_insert_with(|| output.clone());
            assert!(*first == output, "{} gives other bits than another instruction set", backend.name());
        }
    }
}
