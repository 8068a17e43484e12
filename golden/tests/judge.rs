//! The judge is judged: what the cases ask for passes, and every way to be wrong is a failure.

use kvcache_golden::{Case, Expected, Implementation, NanRule, Outcome, Outputs, Played, Tensor, cases, play};

/// Does what a case asks for, and then what `spoil` does to it.
struct Answers<F>(F);

impl<F: Fn(&mut Vec<Played>)> Implementation for Answers<F> {
    fn play(&self, case: &Case) -> Result<Vec<Played>, String> {
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
            Played { outcome, cache: cache.clone(), scale: scale.clone() }
        };
        let mut played = case.steps.iter().map(|step| &step.expected).map(answer).collect();
        (self.0)(&mut played);
        Ok(played)
    }
}

/// How many of these cases fail when their answers are spoilt so.
fn failures(cases: &[Case], spoil: impl Fn(&mut Vec<Played>)) -> usize {
    let report = play(&Answers(spoil), cases);
    assert_eq!(report.passed + report.failures.len(), cases.len());
    report.failures.len()
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

fn last(played: &mut [Played]) -> &mut Played {
    played.last_mut().expect("a case has calls")
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
    let output = |spoil: fn(&mut Outputs)| {
        move |played: &mut Vec<Played>| match &mut last(played).outcome {
            Outcome::Done(outputs) => spoil(outputs),
            Outcome::Refused { .. } => unreachable!("only successes are played"),
        }
    };
    assert_eq!(failures(&successes, output(|outputs| flip_last_bit(&mut outputs.key))), all);
    assert_eq!(failures(&successes, output(|outputs| flip_last_bit(&mut outputs.value))), all);
    assert_eq!(failures(&successes, |played| flip_last_bit(&mut last(played).cache)), all);
    successes.retain(|case| case.scale.as_ref().is_some_and(|scale| !scale.bytes().is_empty()));
    assert!(!successes.is_empty());
    let spoil = |played: &mut Vec<Played>| flip_last_bit(last(played).scale.as_mut().expect("a scale"));
    assert_eq!(failures(&successes, spoil), successes.len());
    assert_eq!(failures(&successes, |played| last(played).scale = None), successes.len());
}

#[test]
fn an_output_of_another_shape_or_type_fails() {
    let (successes, _) = successes_and_refusals();
    let reshape = |played: &mut Vec<Played>| {
        if let Outcome::Done(outputs) = &mut last(played).outcome {
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
    assert_eq!(failures(&cases, |played| drop(played.pop())), cases.len());
    assert_eq!(failures(&cases, |played| played.extend_from_within(..1)), cases.len());
}

#[test]
fn a_refusal_must_have_its_kind_its_words_and_no_effect() {
    let (successes, refusals) = successes_and_refusals();
    let outcome = |outcome: Outcome| move |played: &mut Vec<Played>| last(played).outcome = outcome.clone();
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
    assert_eq!(failures(&with_cache, |played| flip_last_bit(&mut last(played).cache)), with_cache.len());
    let wordless = |played: &mut Vec<Played>| match &mut last(played).outcome {
        Outcome::Refused { kind, .. } => *kind = None,
        Outcome::Done(_) => unreachable!("only refusals are played"),
    };
    assert_eq!(failures(&with_cache, wordless), 0, "an implementation may have words only");
}

#[test]
fn a_nan_equals_another_only_where_a_case_says_so() {
    let (successes, _) = successes_and_refusals();
    let [exact, any]: [Vec<_>; 2] =
        [NanRule::Exact, NanRule::Any].map(|rule| successes.iter().filter(|case| case.nan == rule).cloned().collect());
    let negate = |played: &mut Vec<Played>| {
        if let Outcome::Done(outputs) = &mut last(played).outcome {
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
