//! The known mistakes: each is wrong in some case, and, as an implementation, is diagnosed by its own name.

use std::collections::BTreeSet;

use kvcache_conformance::diagnosis::{KnownMistakes, Recorder, RunDiagnosis, Trial};
use kvcache_conformance::mistakes::{Mistake, mistakes, mistakes_of};
use kvcache_conformance::oracle::{Inputs, Oracle};
use kvcache_conformance::{CallResult, Case, Implementation, Rule, Suite, Verdict, cases, run, static_batching};
use kvcache_schema::{Attributes, StaticAttributes};

#[test]
fn each_has_a_name_of_its_own_and_a_rule() {
    for (i, mistake) in mistakes().iter().enumerate() {
        assert!(mistakes()[..i].iter().all(|other| other.name != mistake.name), "{}", mistake.name);
        assert!(mistake.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'));
        let rules = [mistake.rule, mistake.static_rule, mistake.attention_rule];
        assert!(rules.iter().any(Option::is_some), "{}", mistake.name);
    }
}

#[test]
fn each_is_diagnosed_in_dynamic_batching() {
    diagnosed::<Attributes, _>(&cases().unwrap(), &[]);
}

#[test]
fn each_is_diagnosed_in_static_batching() {
    // The cases of static batching do not tell these apart, those of dynamic batching do.
    let alike = [
        "eps-missing",
        "eps-missing-but-for-zeros",
        "eps-of-amax",
        "eps-of-1e-6",
        "eps-of-1e-8",
        "eps-for-zeros-alone",
        "eps-of-1e-7",
        "eps-of-1e-9",
        "eps-of-1e-10",
        "eps-of-1e-12",
        "eps-of-machine-epsilon",
    ];
    diagnosed::<StaticAttributes, _>(&static_batching::cases().unwrap(), &alike);
}

/// Runs each mistake as an implementation: some case fails that names its rule, and the mistake alone explains all that
/// fail. Those of `alike` may be explained by each other.
fn diagnosed<A, I: Inputs<A>>(cases: &[Case<A, I>], alike: &[&str])
where
    Oracle: Implementation<A, I>,
    Case<A, I>: Suite<Result = CallResult>,
{
    let known = KnownMistakes::new(cases);
    let mut problems = Vec::new();
    for (mistake, rule) in mistakes_of::<A, I>().step_by(8) {
        let (name, oracle) = (mistake.name, mistake.oracle());
        let report = run(&oracle, cases);
        let page = report.entries[0].page;
        match kvcache_conformance::rule(page, rule) {
            None => problems.push(format!("{name}: {} has no rule {rule}", page.name())),
            Some(Rule { not_proven_by_cases: Some(_), .. }) => {}
            Some(_) => {
                let named = report.failures().filter(|(entry, _)| entry.rules.iter().any(|named| named == rule));
                if named.count() == 0 {
                    let rules: BTreeSet<_> = report.failures().flat_map(|(entry, _)| &entry.rules).collect();
                    problems.push(format!("{name} fails no case of rule {rule}, but of {rules:?}"));
                }
            }
        }

        let results: Vec<_> = cases.iter().map(|case| oracle.run(case).unwrap()).collect();
        let trials = results.iter().zip(&report.entries).enumerate().map(|(case, (results, entry))| Trial {
            case,
            results: Some(results),
            passed: entry.verdict == Verdict::Passed,
        });
        let diagnosis = known.diagnose_run(&trials.collect::<Vec<_>>());
        let RunDiagnosis { failed, explanations, undiagnosed, .. } = &diagnosis;
        let right = match &explanations[..] {
            [explanation] => {
                let is_alike = explanation.or.iter().any(|other| other == name) && alike.contains(&name);
                (explanation.mistakes == [name] || is_alike) && explanation.passed_nevertheless.is_empty()
            }
            _ => false,
        };
        // A value that was cut to 32 bits is another one in the messages of calls that are refused all the same.
        if !right || !undiagnosed.is_empty() && !name.ends_with("-as-int32") {
            problems.push(format!("{name}: of {failed} failures: {diagnosis}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Two mistakes together may do what neither does, as leave a group without values: no pair of them ends the program.
#[test]
fn pairs_of_mistakes_can_be_tried() {
    let mut cases = cases().unwrap();
    cases.sort_by_key(|case| case.cache.bytes().len());
    let (all, telling) = (mistakes(), cases.iter().filter(|case| !case.cache.bytes().is_empty()).step_by(40));
    let cases: Vec<_> = telling.take(6).collect();
    for (i, one) in all.iter().enumerate() {
        // Each with some of the others, near and far in the list.
        for other in all.iter().skip(i % 17).step_by(17) {
            let oracle = Mistake::oracle_of(&[one, other]);
            cases.iter().for_each(|case| assert_eq!(oracle.predict(case).len(), case.steps.len()));
        }
    }
}

#[test]
fn the_oracle_without_mistakes_is_not_accused() {
    let (cases, oracle) = (cases().unwrap(), Oracle::default());
    let recorder = Recorder::new(&oracle);
    let mut report = run(&recorder, &cases);
    let diagnosis = recorder.diagnose(&mut report, &cases);
    assert_eq!((diagnosis.failed, diagnosis.explanations.len(), diagnosis.undiagnosed.len()), (0, 0, 0), "{diagnosis}");
}
