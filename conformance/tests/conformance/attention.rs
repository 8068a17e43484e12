//! The runner of the attention cases: expected results pass, and every kind of wrong result fails.

use kvcache_conformance::attention::{After, CallResult, Case, Implementation, Operator, cases, run};
use kvcache_conformance::{Expected, Outcome, Tensor};
use kvcache_schema::ElementType;

/// Gives the expected results of a case, changed by a function of the case's last call.
struct Answers<F>(F);

impl<F: Fn(&mut CallResult, &Expected<After>)> Implementation for Answers<F> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let mut results: Vec<_> = case
            .steps
            .iter()
            .map(|step| {
                let outcome = match &step.expected {
                    Expected::Success(after) => {
                        (cache, scale) = (after.cache.clone(), after.scale.clone());
                        Outcome::Done(of_type(&after.attn_output, case.t1))
                    }
                    Expected::Refusal { kind, mentions } => {
                        Outcome::Refused { kind: Some(kind.clone()), message: mentions.join(" ") }
                    }
                };
                CallResult { outcome, cache: cache.clone(), scale: scale.clone() }
            })
            .collect();
        let (Some(result), Some(step)) = (results.last_mut(), case.steps.last()) else {
            return Err("a case has calls".to_owned());
        };
        (self.0)(result, &step.expected);
        Ok(results)
    }
}

/// A float32 tensor, rounded to another float type.
fn of_type(tensor: &Tensor, t1: ElementType) -> Tensor {
    if t1 == ElementType::Float32 {
        return tensor.clone();
    }
    let bytes: Vec<u8> = numbers(tensor).into_iter().flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect();
    Tensor::new(t1, tensor.shape().to_vec(), &bytes).expect("as many elements")
}

/// The elements of a float32 tensor.
fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.bytes().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// How many of these cases fail when the answer of their last call is changed so.
fn failures(cases: &[Case], change: impl Fn(&mut CallResult, &Expected<After>)) -> usize {
    let report = run(&Answers(change), cases);
    assert_eq!(report.passed() + report.failed(), cases.len());
    report.failed()
}

/// The cases whose last call succeeds with an output, and those whose last call is refused.
fn successes_and_refusals() -> (Vec<Case>, Vec<Case>) {
    let last = |case: &Case| case.steps.last().expect("a case has calls").expected.clone();
    let (refusals, successes): (Vec<_>, Vec<_>) =
        cases().unwrap().into_iter().partition(|case| matches!(last(case), Expected::Refusal { .. }));
    let with_output = |case: &Case| match last(case) {
        Expected::Success(after) => !after.attn_output.bytes().is_empty(),
        Expected::Refusal { .. } => false,
    };
    let successes: Vec<_> = successes.into_iter().filter(with_output).collect();
    assert!(successes.len() > 150 && refusals.len() > 50, "{} and {}", successes.len(), refusals.len());
    for operator in Operator::ALL {
        assert!(successes.iter().any(|case| case.operator == operator));
        assert!(refusals.iter().any(|case| case.operator == operator));
    }
    (successes, refusals)
}

/// Adds so many times its tolerance to every element of the output.
fn displace(times: f32) -> impl Fn(&mut CallResult, &Expected<After>) {
    move |result, expected| {
        let (Outcome::Done(output), Expected::Success(after)) = (&mut result.outcome, expected) else { return };
        let moved = numbers(&after.attn_output).into_iter().zip(numbers(&after.tolerance)).map(|(x, t)| x + times * t);
        let bytes: Vec<u8> = moved.flat_map(f32::to_le_bytes).collect();
        let moved = Tensor::new(ElementType::Float32, output.shape().to_vec(), &bytes).expect("as many elements");
        *output = of_type(&moved, output.element());
    }
}

#[test]
fn the_right_answers_pass() {
    assert_eq!(failures(&cases().unwrap(), |_, _| {}), 0);
}

#[test]
fn an_output_passes_within_its_tolerance_alone() {
    let (successes, _) = successes_and_refusals();
    let of = |t1: ElementType| -> Vec<_> { successes.iter().filter(|case| case.t1 == t1).cloned().collect() };
    let [float32, float16] = [ElementType::Float32, ElementType::Float16].map(of);
    // Rounding what has been displaced is free where float32 has room for it; float16 has none to spare.
    assert_eq!(failures(&float32, displace(0.75)), 0);
    // Some outputs are zeros without a tolerance, or not finite.
    let displaced = |cases: &[Case]| failures(cases, displace(2.0)) as f32 / cases.len() as f32;
    assert!(displaced(&float32) > 0.95 && displaced(&float16) > 0.95);
}

#[test]
fn what_is_not_finite_must_be_so() {
    let (successes, _) = successes_and_refusals();
    let not_finite: Vec<_> = successes
        .into_iter()
        .filter(|case| match &case.steps.last().expect("a case has calls").expected {
            Expected::Success(after) => numbers(&after.attn_output).iter().any(|x| !x.is_finite()),
            Expected::Refusal { .. } => false,
        })
        .collect();
    assert!(not_finite.len() > 5);
    let zeros = |result: &mut CallResult, _: &Expected<_>| {
        if let Outcome::Done(output) = &mut result.outcome {
            let numbers = numbers(output).into_iter().map(|x| if x.is_finite() { x } else { 0.0 });
            let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
            *output = Tensor::new(ElementType::Float32, output.shape().to_vec(), &bytes).expect("as many elements");
        }
    };
    let float32: Vec<_> = not_finite.into_iter().filter(|case| case.t1 == ElementType::Float32).collect();
    assert!(!float32.is_empty());
    assert_eq!(failures(&float32, zeros), float32.len());
}

#[test]
fn an_output_of_another_shape_or_type_fails() {
    let (successes, _) = successes_and_refusals();
    let replace = |element: Option<ElementType>| {
        move |result: &mut CallResult, _: &Expected<_>| {
            if let Outcome::Done(output) = &mut result.outcome {
                let flat = vec![output.shape().iter().product()];
                let shape = if element.is_none() { flat } else { output.shape().to_vec() };
                *output = Tensor::zeros(element.unwrap_or(output.element()), shape).expect("it fits");
            }
        }
    };
    assert_eq!(failures(&successes, replace(None)), successes.len());
    assert_eq!(failures(&successes, replace(Some(ElementType::Int64))), successes.len());
}

#[test]
fn the_state_must_match_bit_for_bit() {
    let (mut successes, mut refusals) = successes_and_refusals();
    for cases in [&mut successes, &mut refusals] {
        cases.retain(|case| case.cache.is_some());
        let flip = |tensor: &mut Option<Tensor>| {
            if let Some(byte) = tensor.as_mut().and_then(|tensor| tensor.bytes_mut().last_mut()) {
                *byte ^= 1;
            }
        };
        assert_eq!(failures(cases, |result, _| flip(&mut result.cache)), cases.len());
        assert_eq!(failures(cases, |result, _| result.cache = None), cases.len());
        cases.retain(|case| case.scale.as_ref().is_some_and(|scale| !scale.bytes().is_empty()));
        assert!(!cases.is_empty());
        assert_eq!(failures(cases, |result, _| flip(&mut result.scale)), cases.len());
    }
}

#[test]
fn a_refusal_must_have_its_kind_and_its_mentions() {
    let (successes, refusals) = successes_and_refusals();
    let refuse = |kind: Option<&'static str>| {
        move |result: &mut CallResult, _: &Expected<_>| {
            result.outcome = Outcome::Refused { kind: kind.map(str::to_owned), message: "no".to_owned() };
        }
    };
    assert_eq!(failures(&successes, refuse(None)), successes.len());
    assert_eq!(failures(&refusals, refuse(None)), refusals.len());
    assert_eq!(failures(&refusals, refuse(Some("another kind"))), refusals.len());
    let succeed = |result: &mut CallResult, _: &Expected<_>| {
        result.outcome = Outcome::Done(Tensor::zeros(ElementType::Float32, vec![0]).expect("it fits"));
    };
    assert_eq!(failures(&refusals, succeed), refusals.len());
}
