//! Reports, whose forms say the same; which cases are run; and what failures have in common.

use kvcache_conformance::{CallResult, Case, Counts, Only, Report, Runner, Suite, Verdict, run_cases};

use crate::answers::{Answers, CASES, of_suite};

fn dynamic() -> Vec<Case> {
    of_suite(Suite::KeyValueCache).cloned().collect()
}

fn only(conditions: &[(&str, &[&str])]) -> Only {
    let mut only = Only::default();
    for (name, values) in conditions {
        only.add(name, &values.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    }
    only
}

#[test]
fn what_is_outside_is_not_run() {
    let of = |suite, conditions: &[(&str, &[&str])]| {
        let cases: Vec<_> = of_suite(suite).cloned().collect();
        let runner = Runner { only: only(conditions), ..Runner::default() };
        let report = runner.run(&Answers(|_: &Case, _: &mut Vec<CallResult>| Ok(())), &cases);
        assert!(report.conforms() && report.passed() + report.not_run() == cases.len(), "{report}");
        let run = |entry: &&kvcache_conformance::Entry| entry.verdict == Verdict::Passed;
        report.entries.into_iter().filter(|entry| run(&entry)).collect::<Vec<_>>()
    };
    let entries =
        of(Suite::KeyValueCache, &[("T1", &["float16", "bfloat16"]), ("quant_bit", &["0"]), ("batch", &["2"])]);
    assert!(entries.len() > 10);
    for entry in entries {
        let property = |name: &str| entry.properties[name].as_str();
        assert!(["float16", "bfloat16"].contains(&property("T1")), "{}", entry.case);
        assert_eq!([property("quant_bit"), property("batch")], ["0", "2"], "{}", entry.case);
    }
    let entries = of(Suite::Attention, &[("operator", &["MultiHeadAttention"]), ("attention_mass", &["1"])]);
    assert!(!entries.is_empty() && entries.iter().all(|entry| entry.operator.name() == "MultiHeadAttention"));
    // A case has no such type: that is no reason to leave it out.
    assert!(of(Suite::Attention, &[("T2", &["float16"])]).iter().any(|entry| !entry.properties.contains_key("T2")));
}

#[test]
fn a_condition_on_nothing_says_so() {
    let error = |name: &str, values: &[&str]| {
        let values: Vec<_> = values.iter().map(ToString::to_string).collect();
        Only::default().add(name, &values).unwrap_err().to_string()
    };
    assert!(error("pagesize", &["1"]).starts_with("no case has a property called \"pagesize\"; there are "));
    assert!(error("T1", &["double"]).contains("no case has the value \"double\""));
    assert!(error("num_repeat", &["two"]).contains("no case has the value \"two\""));
    assert!(error("num_repeat", &[]).contains("nothing would be run"));
}

/// An implementation with a flaw where the cache is int4, one that crashes, panics, and lacks pages.
fn of_four() -> Report {
    let cases = dynamic();
    let flawed = Answers(|case: &Case, results: &mut Vec<CallResult>| {
        if case.name == "decode-mode0-f32-f32" {
            return Err("<no & such> device".to_owned());
        }
        assert!(case.name != "chunked-prefill-mode0-f16-f16", "a broken kernel");
        if case.attributes["cache_mode"] == 1 {
            *results = vec![CallResult::unsupported("no pages")];
        } else if case.attributes["quant_bit"] == 4 && case.is_legal() {
            let cache = results[0].cache.as_mut().expect("a cache");
            cache.bytes_mut().iter_mut().take(1).for_each(|byte| *byte ^= 1);
        }
        Ok(())
    });
    run_cases(&flawed, &cases)
}

#[test]
fn every_case_has_an_entry_and_every_flaw_its_verdict() {
    let report = of_four();
    assert!(report.passed() > 100 && report.unsupported() > 50 && !report.conforms(), "{}", report.summary());
    assert_eq!(report.passed() + report.failed() + report.unsupported(), report.entries.len());
    let texts: Vec<_> = report.failures().map(|(_, difference)| difference.to_string()).collect();
    assert!(texts.contains(&"<no & such> device".to_owned()));
    assert!(texts.contains(&"the implementation panicked: a broken kernel".to_owned()));
    assert!(!Report::default().conforms(), "nothing has passed");
}

#[test]
fn flaws_are_told_with_what_their_cases_have_in_common() {
    // Illegal calls on int4 pass.
    let report = of_four();
    let flaws = report.flaws();
    let [int4, not_run] = &flaws[..] else { panic!("{flaws:?}") };
    assert_eq!((not_run.flaw.as_str(), not_run.cases), ("could not be run", 2));
    assert_eq!(int4.flaw, "cache differs");
    assert!(int4.only_where.contains(&"T2 is int4".to_owned()), "{flaws:?}");
    let text = report.to_string();
    assert!(text.contains(" cases: cache differs; only where T2 is int4"), "{text}");
    assert!(text.contains("    rule KeyValueCache.md#rule-") && text.contains("unsupported: no pages ("), "{text}");
}

#[test]
fn the_table_by_rule_counts_the_cases_of_each_rule() {
    let mut report = of_four();
    for (i, entry) in report.entries.iter_mut().enumerate() {
        entry.rules = if i % 2 == 0 { vec!["cache-layout.3".to_owned()] } else { Vec::new() };
    }
    let table = report.by_rule();
    let row = table.iter().find(|row| row.rule.id == "cache-layout.3").unwrap();
    let of_rule = Report { entries: report.entries.iter().step_by(2).cloned().collect(), ..Report::default() };
    assert_eq!(row.cases, of_rule.counts());
    assert!(row.cases.passed > 0 && row.cases.failed > 0 && row.cases.unsupported > 0);
    assert!(table.iter().filter(|row| row.rule.id != "cache-layout.3").all(|row| row.cases == Counts::default()));
    let text = report.rule_table();
    let line = text.lines().find(|line| line.contains("KeyValueCache.md#rule-cache-layout.3")).unwrap();
    assert!(line.starts_with("X cache_layout 3, HeadMajor "), "{line}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("rules that no case here proves: ") && last.contains("KeyValueCache/cache-layout.0"));
}

#[test]
fn what_was_done_before_an_unsupported_call_counts() {
    let case = CASES.iter().find(|case| case.is_legal() && case.steps.len() > 1).unwrap();
    for is_wrong in [false, true] {
        let declining = Answers(|_: &Case, results: &mut Vec<CallResult>| {
            results[1] = CallResult::unsupported("no second call");
            if is_wrong {
                results[0].cache = None;
            }
            Ok(())
        });
        let report = run_cases(&declining, std::slice::from_ref(case));
        assert_eq!((report.unsupported(), report.failed()), (usize::from(!is_wrong), usize::from(is_wrong)));
    }
}
