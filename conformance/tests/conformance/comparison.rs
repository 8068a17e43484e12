//! The runner itself: expected results pass, and every kind of wrong result fails.

use kvcache_conformance::{CallResult, Case, Expected, Implementation, NanRule, Outcome, Outputs, Tensor, cases, run};

/// Gives the expected results of a case, changed by a function.
struct Answers<F>(F);

impl<F: Fn(&mut Vec<CallResult>)> Implementation for Answers<F> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let answer = |expected: &Expected| {
            let outcome = match expected {
                Expected::Success(after) => {
                    (cache, scale) = (after.cache.clone(), after.scale.clone());
                    Outcome::Done(after.outputs.clone())
                }
                Expected::Refusal { kind, mentions } => {
                    Outcome::Refused { kind: Some(kind.clone()), message: mentions.join(" ") }
                }
            };
            CallResult { outcome, cache: cache.clone(), scale: scale.clone() }
        };
        let mut results = case.steps.iter().map(|step| &step.expected).map(answer).collect();
        (self.0)(&mut results);
        Ok(results)
    }
}

/// How many of these cases fail when their answers are changed so.
fn failures(cases: &[Case], change: impl Fn(&mut Vec<CallResult>)) -> usize {
    let report = run(&Answers(change), cases);
    assert_eq!(report.passed() + report.failed(), cases.len());
    report.failed()
}

/// The cases of which every call succeeds, and has outputs, and those of which every call is refused.
fn successes_and_refusals() -> (Vec<Case>, Vec<Case>) {
    let has_outputs = |expected: &Expected| match expected {
        Expected::Success(after) => !after.outputs.key.bytes().is_empty() && !after.cache.bytes().is_empty(),
        Expected::Refusal { .. } => false,
    };
    let cases = cases().unwrap();
    let all = |case: &Case, is: &dyn Fn(&Expected) -> bool| case.steps.iter().all(|step| is(&step.expected));
    let successes: Vec<_> = cases.iter().filter(|case| all(case, &has_outputs)).cloned().collect();
    let refused = |expected: &Expected| matches!(expected, Expected::Refusal { .. });
    let refusals: Vec<_> = cases.iter().filter(|case| all(case, &refused)).cloned().collect();
    assert!(successes.len() > 100 && refusals.len() > 50, "{} and {}", successes.len(), refusals.len());
    (successes, refusals)
}

fn flip_last_bit(tensor: &mut Tensor) {
    if let Some(byte) = tensor.bytes_mut().last_mut() {
        *byte ^= 0x80;
    }
}

fn last(results: &mut [CallResult]) -> &mut CallResult {
    results.last_mut().expect("a case has calls")
}

#[test]
fn the_right_answers_pass() {
    assert_eq!(failures(&cases().unwrap(), |_| {}), 0);
}

#[test]
fn one_wrong_bit_fails() {
    let (mut successes, _) = successes_and_refusals();
    // Where any NaN will do, a flipped sign can be right.
    successes.retain(|case| case.nan == NanRule::Exact);
    let all = successes.len();
    let output = |change: fn(&mut Outputs)| {
        move |results: &mut Vec<CallResult>| match &mut last(results).outcome {
            Outcome::Done(outputs) => change(outputs),
            Outcome::Refused { .. } => unreachable!("every call of these cases succeeds"),
        }
    };
    assert_eq!(failures(&successes, output(|outputs| flip_last_bit(&mut outputs.key))), all);
    assert_eq!(failures(&successes, output(|outputs| flip_last_bit(&mut outputs.value))), all);
    assert_eq!(failures(&successes, |results| flip_last_bit(&mut last(results).cache)), all);
    successes.retain(|case| case.scale.as_ref().is_some_and(|scale| !scale.bytes().is_empty()));
    assert!(!successes.is_empty());
    let change = |results: &mut Vec<CallResult>| flip_last_bit(last(results).scale.as_mut().expect("a scale"));
    assert_eq!(failures(&successes, change), successes.len());
    assert_eq!(failures(&successes, |results| last(results).scale = None), successes.len());
}

#[test]
fn an_output_of_another_shape_or_type_fails() {
    let (successes, _) = successes_and_refusals();
    let reshape = |results: &mut Vec<CallResult>| {
        if let Outcome::Done(outputs) = &mut last(results).outcome {
            let [tokens, heads, head_dim] = outputs.key.shape()[..] else { unreachable!("an output has three axes") };
            let flat = vec![tokens * heads * head_dim];
            outputs.key = Tensor::new(outputs.key.element(), flat, outputs.key.bytes()).expect("as many bytes");
        }
    };
    assert_eq!(failures(&successes, reshape), successes.len());
}

#[test]
fn too_few_or_too_many_calls_fail() {
    let cases = cases().unwrap();
    assert_eq!(failures(&cases, |results| drop(results.pop())), cases.len());
    assert_eq!(failures(&cases, |results| results.extend_from_within(..1)), cases.len());
}

#[test]
fn a_refusal_must_have_its_kind_its_mentions_and_no_effect() {
    let (successes, refusals) = successes_and_refusals();
    let outcome = |outcome: Outcome| move |results: &mut Vec<CallResult>| last(results).outcome = outcome.clone();
    let refused = |kind: Option<&str>, message: &str| {
        outcome(Outcome::Refused { kind: kind.map(str::to_owned), message: message.to_owned() })
    };
    assert_eq!(failures(&successes, refused(None, "no")), successes.len());
    assert_eq!(failures(&refusals, refused(Some("another kind"), "no")), refusals.len());
    assert_eq!(failures(&refusals, refused(None, "no")), refusals.len());
    let key = &successes[0].cache;
    let done = Outcome::Done(Outputs { key: key.clone(), value: key.clone() });
    assert_eq!(failures(&refusals, outcome(done)), refusals.len());

    let with_cache: Vec<_> = refusals.into_iter().filter(|case| !case.cache.bytes().is_empty()).collect();
    assert_eq!(failures(&with_cache, |results| flip_last_bit(&mut last(results).cache)), with_cache.len());
    let wordless = |results: &mut Vec<CallResult>| match &mut last(results).outcome {
        Outcome::Refused { kind, .. } => *kind = None,
        Outcome::Done(_) => unreachable!("every call of these cases is refused"),
    };
    assert_eq!(failures(&with_cache, wordless), 0, "an implementation may have messages only");
}

#[test]
fn a_nan_equals_another_only_where_a_case_says_so() {
    let (successes, _) = successes_and_refusals();
    let [exact, any]: [Vec<_>; 2] =
        [NanRule::Exact, NanRule::Any].map(|rule| successes.iter().filter(|case| case.nan == rule).cloned().collect());
    let negate = |results: &mut Vec<CallResult>| {
        if let Outcome::Done(outputs) = &mut last(results).outcome {
            negate_nans(&mut outputs.key);
        }
    };
    assert!(!any.is_empty());
    assert_eq!(failures(&any, negate), 0);
    assert!(failures(&exact, negate) > 0, "some exact case has a NaN, whose bits count");
}

/// Turns the sign of every NaN of a float tensor.
fn negate_nans(tensor: &mut Tensor) {
    let size = tensor.element().align();
    let is_nan = |bytes: &[u8]| match *bytes {
        [a, b] => u16::from_le_bytes([a, b]) & 0x7fff > 0x7c00,
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]).is_nan(),
        _ => false,
    };
    for element in tensor.bytes_mut().chunks_exact_mut(size).filter(|element| is_nan(element)) {
        element[size - 1] ^= 0x80;
    }
}
