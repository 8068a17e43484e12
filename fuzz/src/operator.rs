//! Legal calls, of short rows and long ones: every backend matches the reference bit for bit, in key, value, cache and
//! scale, with outputs at any place of a cache line; and the reference matches the conformance kit's oracle.

use kvcache_conformance::backends::{Operator, StaticOperator};
use kvcache_conformance::random::{Entropy, Plan, static_call};
use kvcache_conformance::run as run_cases;
use kvcache_op::schema::CacheMode;
use kvcache_op::{Backend, Serial};
use kvcache_testing::random::RandomCall;
use kvcache_testing::random_tensors::After;
use kvcache_testing::static_calls::RandomStaticCall;

use crate::tally;
use crate::workers::Careless;

/// Bytes of a cache up to which the oracle, which is slow, is asked.
const MOST: usize = 1 << 14;

/// Runs the target on an input.
pub fn run(bytes: &[u8]) {
    let entropy = &mut Entropy::bytes(bytes);
    let (is_static, streams, parallel) = (entropy.one_in(4), entropy.one_in(2), entropy.one_in(2));
    let (past_line, max_inner, tokens) = (entropy.below(16), entropy.pick(&[6, 20, 80]), entropy.pick(&[4, 12, 60]));
    if is_static {
        let planned = static_call(entropy, max_inner, tokens);
        tally::note(
            "StaticKeyValueCache",
            planned.types,
            planned.attributes.quant_bit,
            planned.attributes.cache_layout,
        );
        let call = RandomStaticCall::of(planned.clone(), past_line);
        agree(streams, parallel, |backend| {
            call.run(backend, |call, outputs| call.run(outputs, &Careless(4)).expect("a legal call"))
        });
        if planned.cache.bytes().len() <= MOST {
            let reference = StaticOperator { backend: Backend::Reference, workers: Serial };
            tally::report(&run_cases(&reference, &[planned.case()]));
        }
        return;
    }
    let mut plan = Plan::draw(entropy, max_inner, tokens);
    if entropy.one_in(8) {
        // Rows as long as what kernels do by pieces, and longer.
        (plan.max_head_dim, plan.inner, plan.num_heads) = (6000, 2 * entropy.below(3000) / plan.group, 1);
        plan.sequences.iter_mut().for_each(|(past, current)| (*past, *current) = (*past % 4, *current % 4));
    }
    let planned = plan.call(entropy);
    let place = planned.attributes.cache_layout * 2 + i64::from(plan.mode == CacheMode::Paged);
    tally::note("KeyValueCache", planned.types, planned.attributes.quant_bit, place);
    let call = RandomCall::of(planned.clone(), past_line);
    agree(streams, parallel, |backend| {
        call.run(backend, |call, outputs| call.run(outputs, &Careless(4)).expect("a legal call"))
    });
    if planned.cache.bytes().len() <= MOST {
        tally::report(&run_cases(&Operator { backend: Backend::Reference, workers: Serial }, &[planned.case()]));
    }
}

/// Every backend leaves what the reference leaves.
fn agree(streams: bool, parallel: bool, run: impl Fn(Backend) -> After) {
    tally::count(true);
    let reference = run(Backend::Reference);
    for backend in Backend::all() {
        let backend = match backend {
            Backend::Cpu(cpu) => {
                let cpu = if streams { cpu.with_stream_bytes(0) } else { cpu };
                Backend::Cpu(if parallel { cpu.with_parallel_bytes(0) } else { cpu })
            }
            other => other,
        };
        assert!(run(backend) == reference, "{} is not as the reference", backend.name());
    }
}
