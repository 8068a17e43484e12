//! The oracle in Rust against the values of the one in numpy.

use kvcache_conformance::attention::Operator;
use kvcache_conformance::oracle::{Oracle, PredictedOutcome};
use kvcache_conformance::{Expected, Tensor};
use kvcache_schema::ElementType;

use crate::answers::{ATTENTION, is_legal};

fn numbers(tensor: &Tensor) -> impl Iterator<Item = f64> + Clone {
    tensor.bytes().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes).into())
}

#[test]
fn outputs_and_tolerances_of_attention_are_those_of_numpy() {
    let oracle = Oracle::default();
    let (mut elements, mut unrounded) = (0, 0);
    for case in ATTENTION.iter() {
        for (step, prediction) in case.steps.iter().zip(oracle.predict_attention(case, None)) {
            let (Expected::Success(after), PredictedOutcome::Done(output)) = (&step.expected, prediction.outcome)
            else {
                continue;
            };
            // Both sum in float64, and the files have float32.
            let close = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 2e-7 * b.abs() + 1e-12;
            assert!(numbers(&after.outputs[0]).zip(&output.values).all(|(a, &b)| close(a, b)), "{}", case.name);
            // The files' tolerance covers the rounding of the output to float32.
            let enough =
                |(file, own): &(f64, f64)| *own <= file * 1.001 + 1e-44 && (file - own).abs() <= 0.3 * file + 1e-44;
            let pairs = numbers(after.tolerance.as_ref().unwrap()).zip(output.tolerance.iter().copied());
            assert_eq!(pairs.clone().find(|pair| !enough(pair)), None, "{}", case.name);
            elements += pairs.count();
            if let (Some([file, tolerance]), Some(own)) = (&after.unrounded, &output.unrounded) {
                // Products with scales of float32 are rounded to that here, which is little beside the tolerance.
                let near = |((a, tolerance), b): ((f64, f64), f64)| close(a, b) || (a - b).abs() < tolerance / 8.0;
                let expected = (0..own.values.len()).map(|i| own.expected(i));
                assert!(numbers(file).zip(numbers(tolerance)).zip(expected).all(near), "{}", case.name);
                unrounded += own.values.len();
            }
        }
    }
    assert!(elements > 200_000 && unrounded > 20_000, "{elements}, {unrounded}");
}

#[test]
fn keys_of_another_type_than_t1_are_refused() {
    for (operator, key) in Operator::ALL.into_iter().zip(["key", "current_key"]) {
        let mut cases = ATTENTION.iter().filter(|case| case.operator == operator && case.t1 == ElementType::Float32);
        let mut case = cases.find(|case| is_legal(*case)).expect("a legal case").clone();
        let shape = case.steps[0].input(key).shape().to_vec();
        case.steps[0].inputs.insert(key, Tensor::zeros(ElementType::Float16, shape).unwrap());
        let first = Oracle::default().predict_attention(&case, None).next();
        let outcome = first.expect("a call").outcome;
        assert!(matches!(outcome, PredictedOutcome::Refused("type_mismatch")), "{key}: {outcome:?}");
    }
}
