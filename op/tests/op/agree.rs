//! Every backend matches the reference bit for bit, on random calls of `KeyValueCache` of dynamic and static batching
//! and every legal combination of types, and accesses no byte outside its tensors.
//!
//! Each tensor touches a guard page. An access to one ends the process with a signal, also by instructions that
//! sanitizers do not see (non-temporal stores).

use std::env;
use std::ops::Range;

use kvcache_conformance::backends::Backends;
use kvcache_conformance::{Call, CallResult, Case, Implementation, Outcome, Suite, cases, random, run_cases};
use kvcache_op::schema::TypeCombination;
use kvcache_op::{AttentionBackend, Backend, Rayon, Serial, Workers};
use kvcache_testing::backends::{backends, splitting};
use kvcache_testing::guarded::{Guard, OnGuarded};
use kvcache_testing::random::{Plan, Unstructured, case, drawn, passes, static_call};
use proptest::prelude::*;

/// A backend that stores and loads.
fn on<W: Workers>(backend: Backend, workers: W) -> Backends<W> {
    Backends { backend, attention: AttentionBackend::default(), workers }
}

fn agree(case: &Case, guards: &[Guard]) -> Result<(), TestCaseError> {
    for backend in backends() {
        for &guard in guards {
            let passes = passes(&OnGuarded { backends: on(backend, Serial), guard }, case);
            prop_assert!(passes.is_ok(), "{backend:?}, {guard:?}: {passes:?}");
        }
    }
    Ok(())
}

/// One of the places where tensors lie.
fn any_guard(entropy: &mut Unstructured) -> [Guard; 1] {
    [entropy.pick(&Guard::ALL)]
}

/// So many calls, in a process of their own, so that the one is reported that ends it; with PROPTEST_FORK=false in this
/// one, for emulators that follow no other.
fn forked(cases: u32) -> ProptestConfig {
    let fork = env::var("PROPTEST_FORK").as_deref() != Ok("false");
    ProptestConfig { cases, fork, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(forked(192))]

    #[test]
    fn small_calls_agree(seed: u64) {
        agree(&drawn(seed, 12, 12), &Guard::ALL)?;
        let entropy = &mut Unstructured::seed(seed);
        agree(&case(static_call(entropy, 12, 10)), &any_guard(entropy))?;
    }
}

proptest! {
    #![proptest_config(forked(5))]

    /// The work is split, whatever it is.
    #[test]
    fn large_calls_agree_on_several_threads(seed: u64) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let entropy = &mut Unstructured::seed(seed);
        for case in [drawn(seed, 60, 300), case(static_call(entropy, 40, 80))] {
            let [guard] = any_guard(entropy);
            for backend in splitting() {
                let passes = pool.install(|| passes(&OnGuarded { backends: on(backend, Rayon), guard }, &case));
                prop_assert!(passes.is_ok(), "{backend:?}, {guard:?}: {passes:?}");
            }
        }
    }
}

/// A call of these types with heads of so many pairs of elements, which share scales in groups of so many, or all of
/// them.
fn long_heads(entropy: &mut Unstructured, types: TypeCombination, pairs: Range<usize>, group: Option<usize>) -> Call {
    let max_head_dim = 2 * entropy.within(pairs.start, pairs.end - 1);
    let group = group.unwrap_or(max_head_dim);
    let group = if types.quant_bit == 4 { group.next_multiple_of(2) } else { group };
    let inner = if types.t3.is_some() { max_head_dim / group } else { max_head_dim / 8 };
    let (num_heads, sequences) = (entropy.within(1, 2), vec![(entropy.below(3), 2), (0, 1)]);
    let plan = Plan::draw(entropy, 1, 2);
    let (num_layer, layer_idx) = (1, 0);
    let plan = Plan { types, num_heads, inner, group, max_head_dim, num_layer, layer_idx, sequences, ..plan };
    plan.call(entropy)
}

proptest! {
    #![proptest_config(forked(192))]

    /// Rows of the table of types that no plan has, in small calls of every layout, mode and group.
    #[test]
    fn calls_of_extensions_agree(seed: u64) {
        let entropy = &mut Unstructured::seed(seed);
        let (plan, types) = (Plan::draw(entropy, 12, 12), entropy.pick(&TypeCombination::EXTENSIONS));
        let half_group = entropy.within(1, 8);
        let group = if types.quant_bit == 4 { 2 * half_group } else { half_group };
        let max_head_dim = plan.max_head_dim.max(plan.inner * group);
        let case = case(Plan { types, group, max_head_dim, ..plan }.call(entropy));
        agree(&case, &any_guard(entropy))?;
    }
}

proptest! {
    #![proptest_config(forked(6))]

    /// Calls whose keys are rotated, of every type of quantized cache. A butterfly gives its NaN a sign of the
    /// hardware's.
    #[test]
    fn rotated_calls_agree(seed: u64) {
        let entropy = &mut Unstructured::seed(seed);
        for types in TypeCombination::all().filter(|types| types.t3.is_some()) {
            let mut call = if entropy.one_in(6) {
                long_heads(entropy, types, 2000..2500, None)
            } else {
                let plan = Plan::draw(entropy, 12, 12);
                let group = if types.quant_bit == 4 { plan.group.next_multiple_of(2) } else { plan.group };
                Plan { types, group, ..plan }.call(entropy)
            };
            call.attributes.insert("quant_rotation", 1);
            agree(&Case { any_nan: true, ..call.case() }, &any_guard(entropy))?;
        }
    }
}

proptest! {
    #![proptest_config(forked(1))]

    /// Every row of the table of types, with rows longer than what is quantized, dequantized or streamed at once.
    #[test]
    fn calls_of_long_heads_agree(seed: u64) {
        let entropy = &mut Unstructured::seed(seed);
        for types in TypeCombination::all() {
            let groups = if types.t3.is_some() { &[Some(1), Some(16), None][..] } else { &[None] };
            for &group in groups {
                for pairs in [200..600, 200..600, 1000..2500] {
                    let case = case(long_heads(entropy, types, pairs, group));
                    agree(&case, &any_guard(entropy))?;
                }
            }
        }
    }
}

/// Random calls, legal and illegal: the reference's bits, and the refusals of the conformance kit's `legal`, which
/// shares no code with the operator's checks.
#[test]
fn backends_refuse_what_is_illegal() {
    for suite in [Suite::KeyValueCache, Suite::Static] {
        let cases = random::cases(suite, 1000, 2024);
        for backend in Backend::all() {
            let report = run_cases(&on(backend, Serial), &cases);
            assert!(report.passed() == cases.len(), "{}: {report}", backend.name());
        }
    }
}

#[test]
fn attention_stays_inside_its_operands() {
    let mut cases = cases(Suite::Attention).unwrap();
    cases.retain(|case| case.is_legal() && case.cache.is_some());
    assert!(cases.len() > 100);
    for attention in AttentionBackend::all().skip(1) {
        let backends = Backends { backend: Backend::default(), attention, workers: Serial };
        for case in &cases {
            let results = Guard::ALL.map(|guard| OnGuarded { backends, guard }.run(case).unwrap());
            let is_done = |result: &CallResult| matches!(result.outcome, Outcome::Done(_));
            assert!(results[0].iter().all(is_done), "{}: {}", case.name, attention.name());
            assert!(results.iter().all(|other| *other == results[0]), "{}: {}", case.name, attention.name());
        }
    }
}
