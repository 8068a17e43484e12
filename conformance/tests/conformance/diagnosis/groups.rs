//! What is said where no known mistake explains failures: by what is wrong with them, and by a condition that tells them
//! from the cases that passed.

use kvcache_conformance::diagnosis::{Flaw, KnownMistakes, RunDiagnosis};
use kvcache_conformance::oracle::Oracle;
use kvcache_conformance::{CallResult, Case, Implementation, Outcome, Tensor};

use super::trial::{diagnosed, telling};

/// The oracle, whose results in a case are changed.
struct Changed<F>(F);

impl<F: Fn(&Case, &mut CallResult)> Implementation for Changed<F> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let mut results = Implementation::run(&Oracle::default(), case)?;
        results.iter_mut().for_each(|result| (self.0)(case, result));
        Ok(results)
    }
}

/// An implementation that refuses legal calls of these cases in its own words.
fn refusing(message: fn(&Case) -> String, refuses: fn(&Case) -> bool) -> impl Implementation {
    Changed(move |case: &Case, result: &mut CallResult| {
        if refuses(case) && matches!(result.outcome, Outcome::Done(_)) {
            *result = CallResult {
                outcome: Outcome::refused(message(case)),
                cache: case.cache.clone(),
                scale: case.scale.clone(),
            };
        }
    })
}

fn of(implementation: &dyn Implementation) -> RunDiagnosis {
    let cases = telling();
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
    assert!(matches!(&group.flaw, Flaw::Refused { message: Some(said) } if said.starts_with("quant_group is ")));
    let condition = group.scope.to_string();
    assert!(condition.contains("quant_group is "), "{diagnosis}");
    assert!(!condition.contains("at least 1"), "{diagnosis}");
}

#[test]
fn the_size_of_the_batch_is_a_condition() {
    let batch =
        |case: &Case| case.steps[0].inputs.seqstarts.shape().first().map_or(0, |starts| starts.saturating_sub(1));
    assert!(telling().iter().any(|case| batch(case) > 3));
    let refuses = |case: &Case| case.steps[0].inputs.seqstarts.shape().first().is_some_and(|&starts| starts > 4);
    let diagnosis = of(&refusing(|_| "too many".to_owned(), refuses));
    let [group] = &diagnosis.unexplained[..] else { panic!("{diagnosis}") };
    assert_eq!(group.scope.to_string(), "batch is at least 4", "{diagnosis}");
}

#[test]
fn failures_without_a_common_part_have_no_condition() {
    let refuses = |case: &Case| case.name.len() % 3 == 0;
    let diagnosis = of(&refusing(|_| "no".to_owned(), refuses));
    assert!(diagnosis.unexplained.iter().all(|group| group.scope.is_everything()), "{diagnosis}");
}

#[test]
fn illegal_calls_that_are_made_are_told_by_the_errors_that_were_expected() {
    let makes = |case: &Case, result: &mut CallResult| {
        if matches!(&result.outcome, Outcome::Refused { kind: Some(kind), .. } if kind == "kvlen_mismatch") {
            let empty = Tensor::zeros(case.types.t1, vec![0, 0, 0]).unwrap();
            let outputs = kvcache_conformance::Outputs { key: empty.clone(), value: empty };
            result.outcome = Outcome::Done(outputs);
        }
    };
    let diagnosis = of(&Changed(makes));
    let expected = format!("of illegal calls that were made: expected kvlen_mismatch ({}).", diagnosis.failed);
    assert!(diagnosis.to_string().ends_with(&expected), "{diagnosis}");
}

#[test]
fn a_state_that_is_changed_before_a_refusal_is_told_as_that() {
    let changes = |_: &Case, result: &mut CallResult| {
        if matches!(result.outcome, Outcome::Refused { .. }) {
            result.cache.bytes_mut().iter_mut().take(1).for_each(|byte| *byte ^= 1);
        }
    };
    let diagnosis = of(&Changed(changes));
    let [explanation] = &diagnosis.explanations[..] else { panic!("{diagnosis}") };
    assert_eq!((explanation.mistake, diagnosis.unexplained.len()), ("state-changed-before-refusal", 0), "{diagnosis}");
}

#[test]
fn the_sign_of_zeros_is_no_rounding() {
    let negative = |case: &Case, result: &mut CallResult| {
        let Outcome::Done(outputs) = &mut result.outcome else { return };
        let size = outputs.key.element().align();
        if case.attributes.quant_bit != 0 && case.attributes.num_repeat == 1 {
            let zeros =
                outputs.key.bytes_mut().chunks_exact_mut(size).filter(|bytes| bytes.iter().all(|&byte| byte == 0));
            zeros.for_each(|bytes| bytes[size - 1] = 0x80);
        }
    };
    let diagnosis = of(&Changed(negative));
    let [explanation] = &diagnosis.explanations[..] else { panic!("{diagnosis}") };
    assert_eq!((explanation.mistake, diagnosis.unexplained.len()), ("sign-of-zero", 0), "{diagnosis}");
}
