//! The known mistakes of attention: each is wrong in some case, and, as an implementation, is diagnosed by its own
//! name.

use std::collections::{BTreeMap, BTreeSet};

use kvcache_conformance::attention::{CallResult, Case, Implementation, cases, run};
use kvcache_conformance::diagnosis::{KnownMistakes, Recorder, RunDiagnosis, Trial};
use kvcache_conformance::mistakes::{Mistake, attention_rule, mistakes};
use kvcache_conformance::oracle::Oracle;
use kvcache_conformance::{Report, Verdict};

/// Results that were made before, by the name of the case.
struct Recorded<'a>(BTreeMap<&'a str, &'a [CallResult]>);

impl Implementation for Recorded<'_> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        Ok(self.0[case.name.as_str()].to_vec())
    }
}

/// The report on a mistake as an implementation, and its diagnosis.
fn diagnosed(mistake: &Mistake, cases: &[Case], known: &KnownMistakes<'_, Case>) -> (Report, RunDiagnosis) {
    let oracle = mistake.oracle();
    let results: Vec<_> = cases.iter().map(|case| Implementation::run(&oracle, case).unwrap()).collect();
    let named = cases.iter().zip(&results).map(|(case, results)| (case.name.as_str(), results.as_slice()));
    let report = run(&Recorded(named.collect()), cases);
    let trials = results.iter().zip(&report.entries).enumerate().map(|(case, (results, entry))| Trial {
        case,
        results: Some(results),
        passed: entry.verdict == Verdict::Passed,
    });
    let diagnosis = known.diagnose_run(&trials.collect::<Vec<_>>());
    (report, diagnosis)
}

/// Those of attention, and a part of those of the cache, each of which its own suite diagnoses.
#[test]
fn each_is_diagnosed() {
    let sample = 8;
    // One takes a third of the time, and tells no mistakes apart that the others do not; in a sample, so do these.
    let left_out: &[_] = if sample > 1 { &["long-int", "layout1", "layout2", "layout3"] } else { &["long-int4"] };
    let mut cases = cases().unwrap();
    cases.retain(|case| !left_out.iter().any(|name| case.name.starts_with(name)));
    let known = KnownMistakes::new(&cases);
    let of_attention = mistakes().iter().filter(|mistake| mistake.rule.is_none()).step_by(sample);
    let of_cache = mistakes().iter().filter(|mistake| mistake.rule.is_some()).step_by(8 * sample);
    let (mut problems, mut shown) = (Vec::new(), 0);
    for mistake in of_attention.chain(of_cache) {
        let (Some(broken), name) = (attention_rule(mistake), mistake.name) else { continue };
        let of_cache = mistake.rule.is_some();
        let (report, diagnosis) = diagnosed(mistake, &cases, &known);
        let RunDiagnosis { failed, explanations, undiagnosed, .. } = &diagnosis;
        // KeyValueCache has cases of its own, and not every mistake in it shows in attention.
        if of_cache && *failed == 0 {
            continue;
        }
        shown += 1;
        if !of_cache && !report.failures().any(|(entry, _)| entry.rules.iter().any(|named| named == broken)) {
            let rules: BTreeSet<_> = report.failures().flat_map(|(entry, _)| &entry.rules).collect();
            problems.push(format!("{name} fails no case of rule {broken}, but of {rules:?}"));
        }
        // For the same reason some mistakes in the cache give the same here.
        let is_alike = |or: &[String]| of_cache && or.iter().any(|other| other == name);
        let is_right = match &explanations[..] {
            [explanation] => explanation.mistakes == [name] || is_alike(&explanation.or),
            _ => false,
        };
        // A value that was cut to 32 bits is another one in the messages of calls that are refused all the same.
        let may_be_left = name.ends_with("-as-int32");
        if !is_right || !undiagnosed.is_empty() && !may_be_left {
            problems.push(format!("{name}: of {failed} failures: {diagnosis}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(shown > 165 / sample, "{shown}");
}

#[test]
fn the_oracle_without_mistakes_is_not_accused() {
    let (cases, oracle) = (cases().unwrap(), Oracle::default());
    let recorder = Recorder::new(&oracle);
    let mut report = run(&recorder, &cases);
    let diagnosis = recorder.diagnose(&mut report, &cases);
    assert_eq!((diagnosis.failed, diagnosis.explanations.len(), diagnosis.undiagnosed.len()), (0, 0, 0), "{diagnosis}");
}
