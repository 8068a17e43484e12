//! The known mistakes: each is wrong in some case, and, as an implementation, is diagnosed by its own name.

use std::collections::BTreeSet;

use kvcache_conformance::diagnosis::{Diagnosable, KnownMistakes, Recorder};
use kvcache_conformance::mistakes::mistakes;
use kvcache_conformance::oracle::{Inputs, Oracle};
use kvcache_conformance::{
    CallResult, Case, Implementation, OperatorPage, Rule, Suite, cases, rule, run, static_batching,
};
use kvcache_schema::{Attributes, StaticAttributes};

use super::trial::{diagnosed, telling};

#[test]
fn each_has_a_name_of_its_own_and_a_rule() {
    let all = mistakes();
    assert!(all.len() > 300, "{}", all.len());
    for (i, mistake) in all.iter().enumerate() {
        let name = &mistake.name;
        assert!(all[..i].iter().all(|other| other.name != *name), "{name}");
        assert!(all[..i].iter().all(|other| other.oracle() != mistake.oracle()), "{name} does what another does");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'), "{name}");
        let is_rule = |page| rule(page, &mistake.rule).is_some();
        assert!(OperatorPage::ALL.into_iter().any(is_rule), "{name}: {}", mistake.rule);
        assert!(mistake.oracle() != Oracle::default() && !mistake.about.contains(['{', '}']), "{name}");
    }
}

#[test]
fn each_is_diagnosed_in_dynamic_batching() {
    let shown = each_is_diagnosed::<Attributes, _>(&telling(), 11);
    assert!(shown > 15, "{shown}");
}

#[test]
fn each_is_diagnosed_in_static_batching() {
    let shown = each_is_diagnosed::<StaticAttributes, _>(&some_static(), 16);
    assert!(shown > 5, "{shown}");
}

fn some_static() -> Vec<static_batching::Case> {
    static_batching::cases().unwrap().into_iter().step_by(2).collect()
}

/// Runs every so manieth mistake as an implementation: some case fails that names its rule, and the mistake alone explains
/// all that fail. Gives how many were wrong anywhere: not all can be in static batching.
fn each_is_diagnosed<A, I: Inputs<A>>(cases: &[Case<A, I>], part: usize) -> usize
where
    Oracle: Implementation<A, I>,
    Case<A, I>: Diagnosable + Suite<Result = CallResult>,
{
    let known = KnownMistakes::new(cases);
    let (page, mut shown, mut problems) = (cases[0].page(), 0, Vec::new());
    for mistake in mistakes().iter().filter(|mistake| !mistake.is_of_attention()).step_by(part) {
        let name = mistake.name.as_str();
        let (diagnosis, failed) = diagnosed(&mistake.oracle(), cases, &known);
        if diagnosis.failed == 0 && page == OperatorPage::StaticKeyValueCache {
            continue;
        }
        shown += 1;
        let proven = rule(page, &mistake.rule).is_some_and(|rule: &Rule| rule.not_proven_by_cases.is_none());
        if page == OperatorPage::KeyValueCache && proven && !failed.contains(&mistake.rule) {
            let rules: BTreeSet<_> = failed.iter().collect();
            problems.push(format!("{name} fails no case of rule {}, but of {rules:?}", mistake.rule));
        }
        // The cases of static batching do not tell all apart, those of dynamic batching do.
        let is_alike = |or: &[&str]| page == OperatorPage::StaticKeyValueCache && or.contains(&name);
        let is_right = match &diagnosis.explanations[..] {
            [only] => (only.mistake == name || is_alike(&only.or)) && only.passed_nevertheless.is_empty(),
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
fn the_oracle_without_mistakes_is_not_accused() {
    let (cases, oracle) = (cases().unwrap(), Oracle::default());
    let recorder = Recorder::new(&oracle);
    let mut report = run(&recorder, &cases);
    let diagnosis = recorder.diagnose(&mut report, &cases);
    assert_eq!((diagnosis.failed, diagnosis.to_string().as_str()), (0, ""));
    assert!(report.conclusions.is_empty());
}
