//! Profiles: what is within is tested as ever, what is outside must be refused or is left out. And reports,
//! whose forms say the same.

use std::path::Path;

use kvcache_conformance::{
    CallResult, Case, Counts, Diagnosis, Expected, Implementation, Mismatch, Outcome, Profile, Report, Runner,
    Standing, Suite, Tensor, Verdict,
};
use kvcache_schema::{CacheLayout, CacheMode, ElementType};

use crate::answers::{ATTENTION, Answers, DYNAMIC, STATIC};

/// What becomes of a case that is outside of what an implementation does.
#[derive(Clone, Copy, PartialEq)]
enum Answer {
    Refuses,
    RefusesAfterWriting,
    RunsIt,
}

/// Float16 in pages of the head-major layout, for at most eight output heads to a cache head.
fn is_float16_paged(case: &Case) -> bool {
    let attributes = &case.attributes;
    case.types.t1 == ElementType::Float16
        && case.types.t2 == ElementType::Float16
        && attributes.quant_bit == 0
        && attributes.cache_mode == CacheMode::Paged.code()
        && attributes.cache_layout == CacheLayout::HeadMajor.code()
        && (1..=8).contains(&attributes.num_repeat)
}

fn example(name: &str) -> Profile {
    Profile::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden").join("profiles").join(name)).unwrap()
}

/// The report on an implementation of that alone.
fn report(profile: &Profile, answer: Answer) -> Report {
    let change = |case: &Case, results: &mut Vec<CallResult>| {
        if answer != Answer::RunsIt && !is_float16_paged(case) {
            let (mut cache, scale) = (case.cache.clone(), case.scale.clone());
            let written = cache.bytes_mut().iter_mut().filter(|_| answer == Answer::RefusesAfterWriting);
            written.take(1).for_each(|byte| *byte ^= 1);
            let refused = Outcome::refused("this device has no kernel for it");
            results.fill(CallResult { outcome: refused, cache: Some(cache), scale });
        }
        Ok(())
    };
    Runner { profile: Some(profile), ..Runner::default() }.run(&Answers(change), &DYNAMIC[..])
}

#[test]
fn what_is_outside_must_be_refused_with_the_state_as_it_was() {
    let profile = example("float16-paged-head-major.yaml");
    let cases = &DYNAMIC[..];
    let right = report(&profile, Answer::Refuses);
    assert!(right.conforms() && right.passed() == cases.len(), "{right}");
    for (case, entry) in cases.iter().zip(&right.entries) {
        assert_eq!(entry.outside.is_none(), is_float16_paged(case), "{}: {:?}", case.name, entry.outside);
    }
    let within = right.entries.iter().filter(|entry| entry.outside.is_none()).count();
    assert!(within >= 2 && within < cases.len() / 4, "{within}");
    assert!(right.summary().ends_with("(profile: float16, paged, head-major)"), "{}", right.summary());

    let succeeds = |case: &Case| case.steps.iter().any(|step| matches!(step.expected, Expected::Success(_)));
    let lenient = report(&profile, Answer::RunsIt);
    let not_refused =
        lenient.failures().filter(|(_, difference)| difference.mismatch == Mismatch::NotRefused { expected: None });
    let expected = cases.iter().filter(|case| !is_float16_paged(case) && succeeds(case)).count();
    assert_eq!((not_refused.count(), lenient.failed()), (expected, expected));
    let text = lenient.text();
    assert!(text.contains("must be refused, since T1 is float32, and the profile has float16\n"), "{text}");

    let writing = report(&profile, Answer::RefusesAfterWriting);
    let expected = cases.iter().filter(|case| !is_float16_paged(case) && !case.cache.bytes().is_empty()).count();
    assert_eq!(writing.failed(), expected);
    assert!(writing.failures().all(|(_, difference)| difference.to_string().contains("cache of a refused call")));
}

#[test]
fn limits_are_those_of_each_operator() {
    fn within<'a, C: Suite>(profile: &Profile, cases: &'a [C]) -> Vec<&'a C> {
        cases.iter().filter(|case| profile.standing(&case.features()) == Standing::Within).collect()
    }
    let standings = |text: &str| {
        let profile = Profile::parse(&format!("{{name: x, outside: refuse, operators: {text}}}")).unwrap();
        (within(&profile, &DYNAMIC), within(&profile, &STATIC), within(&profile, &ATTENTION))
    };
    let (dynamic, of_static, attention) =
        standings("{KeyValueCache: {head_dim: {max: 8}, batch: [2]}, StaticKeyValueCache: {cache_layout: [1]}}");
    assert!(dynamic.len() > 10 && of_static.len() > 10 && attention.is_empty());
    for case in &dynamic {
        let inputs = &case.steps[0].inputs;
        assert!(inputs.current_key.shape().last().is_none_or(|&head_dim| head_dim <= 8), "{}", case.name);
        assert!(inputs.kvstarts.shape().len() != 1 || inputs.kvstarts.shape() == [3], "{}", case.name);
    }
    assert!(of_static.iter().all(|case| case.attributes.cache_layout == 1));
    let (_, _, attention) =
        standings("{MultiHeadCacheAttention: {is_causal: [0], cache_heads: {min: 2}, T2: [int8], T3: [float32]}}");
    assert!(!attention.is_empty());
    for case in &attention {
        assert_eq!(case.attributes.attention.is_causal, 0);
        assert_eq!(case.cache.as_ref().map(Tensor::element), Some(ElementType::Int8));
        assert!(case.steps[0].input("current_key").shape()[1] >= 2);
    }
}

#[test]
fn every_example_is_a_profile() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden").join("profiles");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(files.len() >= 4);
    for file in files {
        let name = file.to_str().unwrap();
        let profile = example(name);
        let features = DYNAMIC.iter().map(Suite::features).chain(ATTENTION.iter().map(Suite::features));
        let standings: Vec<_> = features.map(|features| profile.standing(&features)).collect();
        assert!(standings.contains(&Standing::Within), "{name}");
        let all = standings.iter().all(|standing| *standing == Standing::Within);
        assert_eq!(all, name == "cpu.yaml", "{name}");
    }
}

#[test]
fn a_text_that_is_no_profile_says_why() {
    let error = |text: &str| Profile::parse(text).unwrap_err().to_string();
    let with = |operators: &str| error(&format!("{{name: x, outside: refuse, operators: {operators}}}"));
    assert!(error("{name: x, outside: refuse, operator: {}}").contains("operator"));
    assert!(error("{name: x, outside: fail, operators: {KeyValueCache: }}").contains("fail"));
    assert!(error("{outside: skip, operators: {KeyValueCache: }}").contains("name"));
    assert_eq!(with("{}"), "operators is empty: nothing would be tested");
    assert!(with("{KVCache: }").starts_with("no operator is called \"KVCache\"; there are KeyValueCache, "));
    let key = with("{KeyValueCache: {pagesize: [1]}}");
    assert!(key.starts_with("KeyValueCache has nothing to limit called \"pagesize\"; there are T1, T2, T3, num_layer"));
    assert!(with("{StaticKeyValueCache: {cache_mode: [1]}}").contains("\"cache_mode\""));
    assert!(with("{MultiHeadCacheAttention: {num_repeat: [1]}}").contains("\"num_repeat\""));
    assert_eq!(with("{KeyValueCache: {T1: [half]}}"), "KeyValueCache, T1: no element type is called \"half\"");
    assert!(with("{KeyValueCache: {T1: float16}}").starts_with("KeyValueCache, T1: expected a list of types: "));
    for wrong in ["3", "{from: 1}", "[a]"] {
        let error = with(&format!("{{KeyValueCache: {{num_repeat: {wrong}}}}}"));
        assert!(error.starts_with("KeyValueCache, num_repeat: expected a list of numbers or a range "), "{error}");
    }
    for (name, nothing) in [("T1", "[]"), ("num_repeat", "[]"), ("num_repeat", "{min: 3, max: 1}")] {
        let error = with(&format!("{{KeyValueCache: {{{name}: {nothing}}}}}"));
        assert_eq!(error, format!("KeyValueCache, {name}: nothing is allowed, so nothing would be tested"));
    }
    let twice = with("{KeyValueCache: {T1: [float16], T1: [float32]}}");
    assert!(twice.contains("T1") && twice.contains("duplicate"), "{twice}");
    let absent = Profile::read(Path::new("/no/such/profile.yaml")).unwrap_err().to_string();
    assert!(absent.starts_with("/no/such/profile.yaml: "), "{absent}");
}

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
fn of_four() -> Report {
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
    let report = of_four();
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
    let mut report = of_four();
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
