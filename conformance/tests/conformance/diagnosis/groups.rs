//! What is said where no known mistake explains failures: by what is wrong with them, and by a condition that tells them
//! from the cases that passed.

use kvcache_conformance::diagnosis::{KnownMistakes, RunDiagnosis};
use kvcache_conformance::{CallResult, Case, Implementation, Outcome, Tensor};

use super::trial::{diagnosed, telling};
use crate::answers::Answers;

fn changed(change: impl Fn(&Case, &mut CallResult)) -> impl Implementation {
    Answers(move |case: &Case, results: &mut Vec<CallResult>| {
        results.iter_mut().for_each(|result| change(case, result));
        Ok(())
    })
}

/// An implementation that refuses legal calls of these cases in its own words.
fn refusing(message: fn(&Case) -> String, refuses: fn(&Case) -> bool) -> impl Implementation {
    changed(move |case: &Case, result: &mut CallResult| {
        if refuses(case) && matches!(result.outcome, Outcome::Done(_)) {
            *result = CallResult {
                outcome: Outcome::refused(message(case)),
                cache: Some(case.cache.clone()),
                scale: case.scale.clone(),
            };
        }
    })
}

fn of(implementation: &(impl Implementation + ?Sized)) -> RunDiagnosis {
    of_cases(implementation, telling())
}

fn of_cases(implementation: &(impl Implementation + ?Sized), cases: Vec<Case>) -> RunDiagnosis {
    let (diagnosis, _) = diagnosed(implementation, &cases, &KnownMistakes::new(&cases));
    assert!(diagnosis.failed > 0);
    diagnosis
}

#[test]
fn why_a_legal_call_is_refused_is_what_it_says_and_no_guess() {
    let is_wide = |case: &Case| case.attributes.quant_bit != 0 && case.attributes.quant_group > 16;
    let message = |case: &Case| format!("quant_group is {} > 16", case.attributes.quant_group);
    let diagnosis = of(&refusing(message, is_wide));
    let [group] = &diagnosis.unexplained[..] else { panic!("{diagnosis}") };
    assert!(diagnosis.explanations.is_empty() && group.cases.len() == diagnosis.failed, "{diagnosis}");
    assert!(group.flaw.starts_with("of legal calls that were refused, saying \"quant_group is "), "{diagnosis}");
    let condition = group.scope.to_string();
    assert!(condition.contains("quant_group is "), "{diagnosis}");
    assert!(!condition.contains("at least 1"), "{diagnosis}");
}

#[test]
fn illegal_calls_that_are_made_are_told_by_the_errors_that_were_expected() {
    let makes = |case: &Case, result: &mut CallResult| {
        if matches!(&result.outcome, Outcome::Refused { kind: Some(kind), .. } if kind == "kvlen_mismatch") {
            let empty = Tensor::zeros(case.types.t1, vec![0, 0, 0]).unwrap();
            result.outcome = Outcome::Done(vec![empty.clone(), empty]);
        }
    };
    let diagnosis = of(&changed(makes));
    let expected = format!("of illegal calls that were made: expected kvlen_mismatch ({}).", diagnosis.failed);
    assert!(diagnosis.to_string().ends_with(&expected), "{diagnosis}");
}

#[test]
fn a_state_that_is_changed_before_a_refusal_is_told_as_that() {
    let changes = |_: &Case, result: &mut CallResult| {
        if matches!(result.outcome, Outcome::Refused { .. }) {
            result.cache.iter_mut().flat_map(Tensor::bytes_mut).take(1).for_each(|byte| *byte ^= 1);
        }
    };
    let diagnosis = of(&changed(changes));
    let [explanation] = &diagnosis.explanations[..] else { panic!("{diagnosis}") };
    assert_eq!((explanation.mistake, diagnosis.unexplained.len()), ("state-changed-before-refusal", 0), "{diagnosis}");
}
