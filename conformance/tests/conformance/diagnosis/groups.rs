//! Each known mistake is wrong in some case and diagnosed by its own name. What is said where none explains failures:
//! by what is wrong with them, and by a condition that tells them from the cases that passed.

use std::collections::BTreeSet;

use kvcache_conformance::diagnosis::{Diagnosable, KnownMistakes, Recorder, RunDiagnosis, Trial};
use kvcache_conformance::mistakes::{Mistake, mistakes};
use kvcache_conformance::oracle::Oracle;
use kvcache_conformance::{
    CallResult, Case, Demand, Implementation, OperatorPage, Outcome, Suite, Tensor, attention, rule, run,
};

use crate::answers::{ATTENTION, Answers, DYNAMIC, STATIC};

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

/// Cases that leave open how refusals are worded, as the oracle does.
pub fn unworded<'a, C: Suite + Clone + 'a>(cases: impl IntoIterator<Item = &'a C>) -> Vec<C> {
    let mut cases: Vec<_> = cases.into_iter().cloned().collect();
    cases.iter_mut().for_each(Suite::forget_messages);
    cases
}

/// The cases, but for most of those that are there for every combination of layouts and types: they take long, and tell
/// few mistakes apart.
pub fn telling() -> Vec<Case> {
    let (every, mut cases): (Vec<_>, Vec<_>) =
        unworded(&*DYNAMIC).into_iter().partition(|case| case.name.starts_with("layout"));
    cases.extend(every.into_iter().step_by(7));
    cases.retain(|case| case.cache.bytes().len() < 6000 || case.name.starts_with("group"));
    cases
}

/// The diagnosis of an implementation, and the rules of the cases that failed.
pub fn diagnosed<C: Diagnosable>(
    implementation: &(impl Implementation<C> + ?Sized),
    cases: &[C],
    known: &KnownMistakes<'_, C>,
) -> (RunDiagnosis, Vec<String>) {
    let results: Vec<_> = cases.iter().map(|case| implementation.run(case).ok()).collect();
    let trial = |(case, results): (usize, &'_ Option<Vec<_>>)| {
        let passes = |results: &Vec<_>| cases[case].difference(results, Demand::AsExpected).is_none();
        (case, results.as_ref().is_some_and(passes))
    };
    let passed: Vec<_> = results.iter().enumerate().map(trial).collect();
    let trials: Vec<_> =
        passed.iter().map(|&(case, passed)| Trial { case, results: results[case].as_deref(), passed }).collect();
    let failed = trials.iter().filter(|trial| !trial.passed);
    let rules = failed.flat_map(|trial| cases[trial.case].rules().to_vec()).collect();
    (known.diagnose_run(&trials), rules)
}

#[test]
fn each_has_a_name_of_its_own_and_a_rule() {
    let all = mistakes();
    assert!(all.len() > 100, "{}", all.len());
    for (i, mistake) in all.iter().enumerate() {
        let name = &mistake.name;
        assert!(all[..i].iter().all(|other| other.name != *name), "{name}");
        assert!(all[..i].iter().all(|other| other.oracle() != mistake.oracle()), "{name} does what another does");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'), "{name}");
        let is_rule = |page| rule(page, &mistake.rule).is_some();
        assert!(OperatorPage::ALL.into_iter().any(is_rule), "{name}: {}", mistake.rule);
        assert!(mistake.oracle() != Oracle::default() && !mistake.about.contains('{'), "{name}");
    }
}

/// Every so manieth mistake of the cache, or of attention.
fn some(of_attention: bool, part: usize) -> impl Iterator<Item = &'static Mistake> {
    mistakes().iter().filter(move |mistake| mistake.is_of_attention() == of_attention).step_by(part)
}

/// The README shows what the kit says of an implementation of that kind.
#[test]
fn the_readme_shows_the_report_on_halves_that_go_away_from_zero() {
    let mistake = mistakes().iter().find(|mistake| mistake.name == "half-away-from-even").unwrap();
    let cases = unworded(&*DYNAMIC);
    let report = run(&mistake.oracle(), &cases).to_string();
    let (diagnosis, _) = diagnosed(&mistake.oracle(), &cases, &KnownMistakes::new(&cases));
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = words(&format!("{report} diagnosis: {diagnosis} ./yours: {}", report.lines().last().unwrap()));
    let readme = include_str!("../../../../README.md");
    let shown = readme.split("```text\n").nth(1).and_then(|shown| shown.split("```").next()).unwrap();
    for paragraph in shown.replace("\n    rules", "\nrules").replace("\n    ", " ").lines() {
        assert!(said.contains(&words(paragraph)), "README has {paragraph:?}, expected a part of {said}");
    }
}

#[test]
fn each_is_diagnosed_in_dynamic_batching() {
    let shown = each_is_diagnosed(&telling(), some(false, 8));
    assert!(shown > 6, "{shown}");
}

/// Some of attention, and a few of those of the cache, each of which its own suite diagnoses.
#[test]
fn each_is_diagnosed_in_attention() {
    // The others take most of the time, and tell no mistakes apart that these do not.
    let size = |case: &attention::Case| -> usize {
        case.steps.iter().flat_map(|step| step.inputs.values()).map(|tensor| tensor.bytes().len()).sum()
    };
    let is_needed = |case: &&attention::Case| size(case) < 6000 && !case.name.starts_with("layout");
    let cases = unworded(ATTENTION.iter().filter(is_needed));
    // Blocks that are long show in the long cases alone.
    let some_of_attention = some(true, 23).filter(|mistake| !mistake.name.starts_with("streaming"));
    let of_mass = mistakes().iter().filter(|mistake| mistake.rule == "mass");
    let shown = each_is_diagnosed(&cases, some_of_attention.chain(of_mass).chain(some(false, 35)));
    assert!(shown > 3, "{shown}");
}

/// Runs mistakes as implementations: of each, some case fails that names its rule, and the mistake alone explains all
/// that fail. Gives how many were wrong anywhere: not all can be in each suite. The cases of dynamic batching tell all
/// of its mistakes apart, others may give the same elsewhere.
fn each_is_diagnosed<C: Diagnosable>(cases: &[C], mistakes: impl Iterator<Item = &'static Mistake>) -> usize
where
    Oracle: Implementation<C>,
{
    let known = KnownMistakes::new(cases);
    let (page, mut shown, mut problems) = (cases[0].page(), 0, Vec::new());
    for mistake in mistakes {
        let (name, Some(broken)) = (mistake.name.as_str(), mistake.rule_on(page)) else { continue };
        let own = mistake.is_of_attention() || page == OperatorPage::KeyValueCache;
        let (diagnosis, failed) = diagnosed(&mistake.oracle(), cases, &known);
        if diagnosis.failed == 0 && !own {
            continue;
        }
        shown += 1;
        let is_proven = rule(page, broken).is_some_and(|rule| rule.not_proven_by_cases.is_none());
        if own && is_proven && !failed.iter().any(|rule| rule == broken) {
            let rules: BTreeSet<_> = failed.iter().collect();
            problems.push(format!("{name} fails no case of rule {broken}, but of {rules:?}"));
        }
        let is_right = match &diagnosis.explanations[..] {
            [only] => (only.mistake == name || !own && only.or.contains(&name)) && only.passed_nevertheless.is_empty(),
            _ => false,
        };
        if !is_right || !diagnosis.unexplained.is_empty() {
            problems.push(format!("{name}: of {} failures: {diagnosis}", diagnosis.failed));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    shown
}

#[test]
fn the_oracle_without_mistakes_is_right_and_not_accused() {
    fn is_right<C: Diagnosable>(cases: &[C])
    where
        Oracle: Implementation<C>,
    {
        let oracle = Oracle::default();
        let recorder = Recorder::new(&oracle);
        let mut report = run(&recorder, cases);
        let diagnosis = recorder.diagnose(&mut report, cases);
        assert_eq!((report.failed(), diagnosis.to_string().as_str()), (0, ""), "{report}");
        assert!(report.passed() > 200 && report.conclusions.is_empty());
    }
    is_right(&unworded(&*DYNAMIC));
    is_right(&unworded(&*STATIC));
    is_right(&unworded(&*ATTENTION));
}
