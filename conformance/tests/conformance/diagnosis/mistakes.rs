//! The known mistakes: each is wrong in some case, and, as an implementation, is diagnosed by its own name.

use std::collections::BTreeSet;

use kvcache_conformance::diagnosis::{Diagnosable, KnownMistakes, Recorder};
use kvcache_conformance::mistakes::{Mistake, mistakes};
use kvcache_conformance::oracle::Oracle;
use kvcache_conformance::{Implementation, OperatorPage, attention, rule, run};

use super::trial::{diagnosed, telling, unworded};
use crate::answers::{ATTENTION, DYNAMIC, STATIC};

#[test]
fn each_has_a_name_of_its_own_and_a_rule() {
    let all = mistakes();
    assert!(all.len() > 150, "{}", all.len());
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

/// Every so manieth mistake of the cache, or of attention.
fn some(of_attention: bool, part: usize) -> impl Iterator<Item = &'static Mistake> {
    mistakes().iter().filter(move |mistake| mistake.is_of_attention() == of_attention).step_by(part)
}

#[test]
fn each_is_diagnosed_in_dynamic_batching() {
    let shown = each_is_diagnosed(&telling(), some(false, 17));
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
    let mistakes = some(true, 41).filter(|mistake| !mistake.name.starts_with("streaming"));
    let shown = each_is_diagnosed(&cases, mistakes.chain(some(false, 127)));
    assert!(shown > 3, "{shown}");
}

/// Runs mistakes as implementations: of each, some case fails that names its rule, and the mistake alone explains all that
/// fail. Gives how many were wrong anywhere: not all can be in each suite. The cases of dynamic batching tell all of its
/// mistakes apart, others may give the same elsewhere.
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

/// Tokens past the 256th are in large cases alone.
#[test]
fn what_drops_tokens_past_256_is_named() {
    let cases: Vec<_> = DYNAMIC.iter().filter(|case| case.name.starts_with("large-kvlen")).cloned().collect();
    let known = KnownMistakes::new(&cases);
    for name in ["first-256-tokens-loaded", "first-256-current-tokens-stored"] {
        let mistake = mistakes().iter().find(|mistake| mistake.name == name).expect("a known mistake");
        let (diagnosis, _) = diagnosed(&mistake.oracle(), &cases, &known);
        let [only] = &diagnosis.explanations[..] else { panic!("{diagnosis}") };
        assert!(only.mistake == name && diagnosis.failed == cases.len() && cases.len() > 2, "{diagnosis}");
    }
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
