//! Every backend matches the reference bit for bit, on random calls of both operators and every legal combination of
//! types.

use std::ops::Range;

use kvcache_op::schema::TypeCombination;
use kvcache_op::{Backend, Rayon, Serial};
use kvcache_testing::backends::{backends, splitting};
use kvcache_testing::random::{Plan, RandomCall, calls, plans, static_calls};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

fn agree(call: &RandomCall) -> Result<(), TestCaseError> {
    let reference = call.run_on(Backend::Reference, &Serial);
    for backend in backends() {
        prop_assert!(call.run_on(backend, &Serial) == reference, "{backend:?}");
    }
    Ok(())
}

/// The work is split, whatever it is.
fn agree_on_several_threads(call: &RandomCall) -> Result<(), TestCaseError> {
    let reference = call.run_on(Backend::Reference, &Serial);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for backend in splitting() {
        prop_assert!(pool.install(|| call.run_on(backend, &Rayon)) == reference, "{backend:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn small_calls_agree(call in calls(12, 12), of_static in static_calls(12, 10)) {
        agree(&call)?;
        agree(&of_static)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5))]

    #[test]
    fn large_calls_agree_on_several_threads(call in calls(60, 300), of_static in static_calls(40, 80)) {
        agree_on_several_threads(&call)?;
        agree_on_several_threads(&of_static)?;
    }
}

/// Checks that so many calls agree.
fn all_agree(cases: u32, calls: &impl Strategy<Value = RandomCall>, about: &str) {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    runner.run(calls, |call| agree(&call)).unwrap_or_else(|error| panic!("{about}: {error}"));
}

/// Calls of these types with heads of so many pairs of elements, which share scales in groups of so many, or all of
/// them.
fn calls_of_long_heads(
    types: TypeCombination,
    pairs: Range<usize>,
    group: Option<usize>,
) -> impl Strategy<Value = RandomCall> {
    (plans(1, 2), 1..3usize, pairs, 0..3usize).prop_perturb(move |(plan, num_heads, pairs, past), mut rng| {
        let max_head_dim = 2 * pairs;
        let group = group.unwrap_or(max_head_dim);
        let group = if types.quant_bit == 4 { group.next_multiple_of(2) } else { group };
        let inner = if types.t3.is_some() { max_head_dim / group } else { max_head_dim / 8 };
        let sequences = vec![(past, 2), (0, 1)];
        let (num_layer, layer_idx) = (1, 0);
        let plan = Plan { types, num_heads, inner, group, max_head_dim, num_layer, layer_idx, sequences, ..plan };
        RandomCall::new(&plan, &mut rng)
    })
}

/// Rows of the table of types that no plan has, in small calls of every layout, mode and group.
#[test]
fn calls_of_extensions_agree() {
    let plans = (plans(12, 12), prop::sample::select(&TypeCombination::EXTENSIONS[..]), 1..9usize);
    let calls = plans.prop_perturb(|(plan, types, half_group), mut rng| {
        let group = if types.quant_bit == 4 { 2 * half_group } else { half_group };
        let max_head_dim = plan.max_head_dim.max(plan.inner * group);
        RandomCall::new(&Plan { types, group, max_head_dim, ..plan }, &mut rng)
    });
    all_agree(192, &calls, "extensions");
}

/// Calls whose keys are rotated, of every type of quantized cache. A butterfly gives its NaN a sign of the hardware's.
#[test]
fn rotated_calls_agree() {
    let rotated = |mut call: RandomCall| {
        call.attributes.insert("quant_rotation", 1);
        let reference = call.run_on(Backend::Reference, &Serial);
        for backend in backends() {
            prop_assert!(call.run_on(backend, &Serial).is_but_for_nan(&reference), "{backend:?}");
        }
        Ok(())
    };
    let mut runner = TestRunner::new(Config { cases: 6, failure_persistence: None, ..Config::default() });
    for types in TypeCombination::all().filter(|types| types.t3.is_some()) {
        let small = plans(12, 12).prop_perturb(move |plan, mut rng| {
            let group = if types.quant_bit == 4 { plan.group.next_multiple_of(2) } else { plan.group };
            RandomCall::new(&Plan { types, group, ..plan }, &mut rng)
        });
        let long = calls_of_long_heads(types, 2000..2500, None);
        runner.run(&prop_oneof![5 => small, 1 => long], rotated).unwrap_or_else(|error| panic!("{types:?}: {error}"));
    }
}

/// Every row of the table of types, with rows longer than what is quantized, dequantized or streamed at once.
#[test]
fn calls_of_long_heads_agree() {
    let check = |cases, types, pairs, group| {
        all_agree(cases, &calls_of_long_heads(types, pairs, group), &format!("{types:?}, groups of {group:?}"));
    };
    for types in TypeCombination::all() {
        let groups = if types.t3.is_some() { &[Some(1), Some(16), None][..] } else { &[None] };
        for &group in groups {
            check(2, types, 200..600, group);
            check(1, types, 1000..2500, group);
        }
    }
}
