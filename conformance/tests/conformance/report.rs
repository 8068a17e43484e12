//! The forms of a report say the same.

use kvcache_conformance::{
    CallResult, Case, Counts, Diagnosis, Implementation, Mismatch, Report, Runner, Tensor, Verdict,
};

use crate::answers::{Answers, DYNAMIC};

/// Gives the right answers but for a flipped bit of the cache, no results, a panic, and a case that it does not run.
struct Flawed<'a>([&'a str; 4]);

impl Implementation for Flawed<'_> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let [flipped, fails, panics, _] = self.0;
        let change = |_: &Case, results: &mut Vec<CallResult>| match &case.name {
            name if name == fails => Err("<no & such> device".to_owned()),
            name if name == panics => panic!("a broken kernel"),
            name => {
                let cache = results[0].cache.iter_mut().filter(|_| name == flipped);
                cache.flat_map(Tensor::bytes_mut).take(1).for_each(|byte| *byte ^= 1);
                Ok(())
            }
        };
        Answers(change).run(case)
    }

    fn cannot_run(&self, case: &Case) -> Option<String> {
        (case.name == self.0[3]).then(|| "no memory for it".to_owned())
    }
}

/// Of the cases that have a cache and the filter's text, one differs, one could not be run, one panics, one is
/// unsupported.
fn report() -> Report {
    let cases: Vec<_> = DYNAMIC.iter().filter(|case| !case.cache.bytes().is_empty()).cloned().collect();
    let mut places = cases.iter().map(|case| case.name.as_str()).filter(|name| name.contains("layout"));
    let flawed = Flawed([(); 4].map(|()| places.next().expect("four cases")));
    let runner = Runner { filter: "layout".to_owned(), jobs: 3.try_into().unwrap(), ..Runner::default() };
    let mut report = runner.run(&flawed, &cases);
    report.implementation = "flawed <1>".to_owned();
    let names: Vec<_> = report.entries.iter().map(|entry| &entry.case).collect();
    assert_eq!(names, cases.iter().map(|case| &case.name).collect::<Vec<_>>(), "in the order of the cases");
    for entry in &mut report.entries {
        if let Verdict::Failed(difference, diagnosis) = &mut entry.verdict
            && matches!(difference.mismatch, Mismatch::Elements(_))
        {
            *diagnosis = Some(Diagnosis {
                mistake: "nibbles-swapped".to_owned(),
                about: "the nibbles of a byte are swapped".to_owned(),
                rule: "int4".to_owned(),
            });
        }
    }
    report
}

#[test]
fn every_case_has_an_entry_and_every_flaw_its_verdict() {
    let report = report();
    assert_eq!((report.failed(), report.unsupported()), (3, 1));
    assert!(report.passed() > 5 && report.not_run() > 100, "{}", report.summary());
    assert_eq!(report.passed() + report.failed() + report.unsupported() + report.not_run(), report.entries.len());
    assert!(!report.conforms());
    let texts: Vec<_> = report.failures().map(|(_, difference)| difference.to_string()).collect();
    assert!(texts[0].starts_with("call 0: cache differs at element 0 "), "{texts:?}");
    assert_eq!(texts[1..], ["<no & such> device", "the implementation panicked: a broken kernel"]);
    assert!(!Report::default().conforms(), "nothing has passed");
}

#[test]
fn the_table_by_rule_counts_the_cases_of_each_rule() {
    let mut report = report();
    for (i, entry) in report.entries.iter_mut().enumerate() {
        entry.rules = if i % 2 == 0 { vec!["cache-layout.3".to_owned()] } else { Vec::new() };
    }
    let table = report.by_rule();
    let row = table.iter().find(|row| row.rule.id == "cache-layout.3").unwrap();
    let of_rule = Report { entries: report.entries.iter().step_by(2).cloned().collect(), ..Report::default() };
    assert_eq!(row.cases, of_rule.counts());
    assert!(row.cases.passed > 0 && row.cases.failed > 0 && row.cases.not_run > 0);
    assert!(table.iter().filter(|row| row.rule.id != "cache-layout.3").all(|row| row.cases == Counts::default()));
    let text = report.rule_table();
    let line = text.lines().find(|line| line.contains("KeyValueCache.md#rule-cache-layout.3")).unwrap();
    assert!(line.starts_with("X cache_layout 3, HeadMajor "), "{line}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("rules that no case here proves: ") && last.contains("KeyValueCache/cache-layout.0"));
}
