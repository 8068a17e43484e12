//! The comparison, which is the same in every suite: expected results pass, and every kind of wrong result fails.

use kvcache_conformance::{CallResult, Case, Expected, Outcome, Suite, Tensor, Value};
use kvcache_schema::ElementType;

use crate::answers::{answers, floats, last_outputs, of_floats, of_suite, of_type};

type Change = fn(&mut Vec<CallResult>);

fn flip_last_bit(tensor: Option<&mut Tensor>) {
    tensor.and_then(|tensor| tensor.bytes_mut().last_mut()).into_iter().for_each(|byte| *byte ^= 0x80);
}

fn last(results: &mut [CallResult]) -> &mut CallResult {
    results.last_mut().expect("a case has calls")
}

fn refused(kind: Option<&str>) -> Outcome {
    Outcome::Refused { kind: kind.map(str::to_owned), message: "no".to_owned() }
}

const FLIPPED_CACHE: usize = 4;
const FLIPPED_SCALE: usize = 5;
const FLIPPED_OUTPUT: usize = 8;

/// What is wrong wherever it changes something, where the last call succeeds and where it is refused.
const OF_SUCCESSES: [Change; 11] = [
    |results| drop(results.pop()),
    |results| results.extend_from_within(..1),
    |results| last(results).outcome = refused(None),
    |results| drop(last_outputs(results).pop()),
    |results| flip_last_bit(last(results).cache.as_mut()),
    |results| flip_last_bit(last(results).scale.as_mut()),
    |results| last(results).cache = None,
    |results| last(results).scale = None,
    |results| flip_last_bit(last_outputs(results).last_mut()),
    |results| {
        let output = &mut last_outputs(results)[0];
        let flat = vec![output.shape().iter().product()];
        *output = Tensor::new(output.element(), flat, output.bytes()).expect("as many bytes");
    },
    |results| {
        let output = &mut last_outputs(results)[0];
        *output = Tensor::zeros(ElementType::Int64, output.shape().to_vec()).expect("it fits");
    },
];
const OF_REFUSALS: [Change; 6] = [
    |results| drop(results.pop()),
    |results| last(results).outcome = refused(None),
    |results| last(results).outcome = refused(Some("another kind")),
    |results| last(results).outcome = Outcome::Done(Vec::new()),
    |results| flip_last_bit(last(results).cache.as_mut()),
    |results| flip_last_bit(last(results).scale.as_mut()),
];

#[test]
fn every_wrong_result_fails() {
    Suite::ALL.into_iter().for_each(every_change_fails);
}

fn every_change_fails(suite: Suite) {
    let mut failures = [[0; OF_SUCCESSES.len()], [0; OF_SUCCESSES.len()]];
    for case in of_suite(suite) {
        let refused = matches!(case.steps.last().unwrap().expected, Expected::Refusal { .. });
        let changes = if refused { &OF_REFUSALS[..] } else { &OF_SUCCESSES[..] };
        let right = answers(case);
        assert_eq!(case.difference(&right), None, "{}", case.name);
        for (i, change) in changes.iter().enumerate() {
            let mut wrong = right.clone();
            change(&mut wrong);
            // A changed bit may be one of any NaN, or of a zero that is near enough.
            let may_be_right = match i {
                FLIPPED_CACHE | FLIPPED_SCALE | FLIPPED_OUTPUT if !refused => case.any_nan,
                _ => false,
            } || i == FLIPPED_OUTPUT && suite == Suite::Attention;
            if right != wrong && !may_be_right {
                assert!(case.difference(&wrong).is_some(), "{}: change {i}", case.name);
                failures[usize::from(refused)][i] += 1;
            }
        }
        let mut results = right;
        if let Outcome::Refused { kind, .. } = &mut last(&mut results).outcome {
            *kind = None;
            assert_eq!(case.difference(&results), None, "one may have messages only");
        }
    }
    for (failures, changes) in failures.iter().zip([OF_SUCCESSES.len(), OF_REFUSALS.len()]) {
        let untried: Vec<_> = (0..changes).filter(|&i| failures[i] == 0).collect();
        assert!(untried.is_empty() || untried == [FLIPPED_OUTPUT] && suite == Suite::Attention, "{untried:?}");
    }
}

#[test]
fn a_nan_equals_another_only_where_a_case_says_so() {
    let mut failed = [0; 2];
    for case in of_suite(Suite::KeyValueCache).filter(|case| case.is_legal()) {
        let mut results = answers(case);
        negate_nans(&mut last_outputs(&mut results)[0]);
        failed[usize::from(!case.any_nan)] += usize::from(case.difference(&results).is_some());
    }
    assert!(failed[0] == 0 && failed[1] > 0, "{failed:?}");
}

/// Turns the sign of every NaN of a tensor.
fn negate_nans(tensor: &mut Tensor) {
    let size = tensor.element().align();
    for i in (0..Value::count(tensor)).filter(|&i| Value::at(tensor, i).is_nan()).collect::<Vec<_>>() {
        tensor.bytes_mut()[(i + 1) * size - 1] ^= 0x80;
    }
}

/// The cases of attention whose last call succeeds, with the output and the tolerance of that.
fn attended(t1: ElementType) -> Vec<(&'static Case, &'static Tensor, &'static Tensor)> {
    let of = |case: &'static Case| match &case.steps.last()?.expected {
        Expected::Success(after) if case.t1() == t1 && !after["attn_output"].bytes().is_empty() => {
            Some((case, &after["attn_output"], &after["tolerance"]))
        }
        _ => None,
    };
    of_suite(Suite::Attention).filter_map(of).collect()
}

/// How many of these cases fail if their last output is this.
fn failing<'a>(outputs: impl Iterator<Item = (&'a Case, Tensor)>) -> usize {
    let fails = |(case, output): (&Case, Tensor)| {
        let mut results = answers(case);
        last_outputs(&mut results)[0] = of_type(&output, case.t1());
        case.difference(&results).is_some()
    };
    outputs.map(fails).filter(|fails| *fails).count()
}

#[test]
fn an_output_of_attention_passes_within_its_tolerance_alone() {
    let displaced = |t1, times: f32| {
        let cases = attended(t1);
        assert!(cases.len() > 50);
        let moved = cases.iter().map(|&(case, output, tolerance)| {
            let moved = floats(output).into_iter().zip(floats(tolerance)).map(|(x, t)| x + times * t);
            (case, of_floats(output, moved))
        });
        failing(moved) as f32 / cases.len() as f32
    };
    // Rounding what has been displaced is free where float32 has room for it; float16 has none to spare.
    assert_eq!(displaced(ElementType::Float32, 0.75), 0.0);
    // Some outputs are zeros without a tolerance, or not finite.
    assert!(displaced(ElementType::Float32, 2.0) > 0.95 && displaced(ElementType::Float16, 2.0) > 0.95);
}

#[test]
fn what_is_not_finite_must_be_so() {
    let mut cases = attended(ElementType::Float32);
    cases.retain(|(_, output, _)| floats(output).iter().any(|x| !x.is_finite()));
    assert!(!cases.is_empty());
    let finite = |x: f32| if x.is_finite() { x } else { 0.0 };
    let outputs =
        cases.iter().map(|&(case, output, _)| (case, of_floats(output, floats(output).into_iter().map(finite))));
    assert_eq!(failing(outputs), cases.len());
}
