//! The oracle in Rust against the values of the one in numpy; rules, each of which some case proves; how cases are read;
//! and random ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use kvcache_conformance::attention::Operator;
use kvcache_conformance::oracle::{KINDS, Oracle, PredictedOutcome};
use kvcache_conformance::random::{cases, static_cases, write};
use kvcache_conformance::{
    Case, CaseInputs, Expected, OperatorPage, ReadError, Suite, Tensor, read_cases, rules, static_batching,
};
use kvcache_schema::ElementType;
use tempfile::TempDir;

use crate::answers::{ATTENTION, DYNAMIC, STATIC, answers, is_legal};

fn numbers(tensor: &Tensor) -> impl Iterator<Item = f64> + Clone {
    tensor.bytes().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes).into())
}

#[test]
fn outputs_and_tolerances_of_attention_are_those_of_numpy() {
    let oracle = Oracle::default();
    let (mut elements, mut unrounded, mut masses) = (0, 0, 0);
    for case in ATTENTION.iter() {
        for (step, prediction) in case.steps.iter().zip(oracle.predict_attention(case, None)) {
            let (Expected::Success(after), PredictedOutcome::Done(output)) = (&step.expected, prediction.outcome)
            else {
                continue;
            };
            // Both sum in float64, and the files have float32.
            let close = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 2e-7 * b.abs() + 1e-12;
            // The files' tolerance covers the rounding of the output to float32.
            let enough =
                |(file, own): &(f64, f64)| *own <= file * 1.001 + 1e-44 && (file - own).abs() <= 0.3 * file + 1e-44;
            assert_eq!(after.outputs.len(), output.outputs().count());
            for ((file, tolerance), own) in after.outputs.iter().zip(&after.tolerance).zip(output.outputs()) {
                assert!(numbers(file).zip(&own.values).all(|(a, &b)| close(a, b)), "{}", case.name);
                let pairs = numbers(tolerance).zip(own.tolerance.iter().copied());
                assert_eq!(pairs.clone().find(|pair| !enough(pair)), None, "{}", case.name);
                elements += pairs.count();
            }
            masses += output.mass.as_ref().map_or(0, |mass| mass.values.len());
            let (Some([files, tolerances]), Some(own)) = (&after.unrounded, &output.unrounded) else { continue };
            for ((file, tolerance), own) in files.iter().zip(tolerances).zip(own.outputs()) {
                // Products with scales of float32 are rounded to that here, which is little beside the tolerance.
                let near = |((a, tolerance), b): ((f64, f64), f64)| close(a, b) || (a - b).abs() < tolerance / 8.0;
                let expected = (0..own.values.len()).map(|i| own.expected(i));
                assert!(numbers(file).zip(numbers(tolerance)).zip(expected).all(near), "{}", case.name);
                unrounded += own.values.len();
            }
        }
    }
    assert!(elements > 200_000 && unrounded > 20_000 && masses > 4000, "{elements}, {unrounded}, {masses}");
}

#[test]
fn keys_of_another_type_than_t1_are_refused() {
    for (operator, key) in Operator::ALL.into_iter().zip(["key", "current_key"]) {
        let mut cases = ATTENTION.iter().filter(|case| case.operator == operator && case.t1 == ElementType::Float32);
        let mut case = cases.find(|case| is_legal(*case)).expect("a legal case").clone();
        let shape = case.steps[0].input(key).shape().to_vec();
        case.steps[0].inputs.insert(key, Tensor::zeros(ElementType::Float16, shape).unwrap());
        let first = Oracle::default().predict_attention(&case, None).next();
        let outcome = first.expect("a call").outcome;
        assert!(matches!(outcome, PredictedOutcome::Refused("type_mismatch")), "{key}: {outcome:?}");
    }
}

/// The cases of all suites that name a rule of each page, by the rule.
fn named() -> BTreeMap<OperatorPage, BTreeMap<String, Vec<String>>> {
    fn of<C: Suite>(cases: &[C]) -> impl Iterator<Item = (OperatorPage, String, Vec<String>)> {
        cases.iter().map(|case| (case.page(), case.name().to_owned(), case.rules().to_vec()))
    }
    let mut named: BTreeMap<_, BTreeMap<_, Vec<_>>> = BTreeMap::new();
    for (page, name, rules) in of(&DYNAMIC).chain(of(&STATIC)).chain(of(&ATTENTION)) {
        assert!(!rules.is_empty(), "{name} proves nothing");
        assert_eq!(rules.iter().collect::<BTreeSet<_>>().len(), rules.len(), "{name} names a rule twice");
        for rule in rules {
            named.entry(page).or_default().entry(rule).or_default().push(name.clone());
        }
    }
    named
}

#[test]
fn every_rule_is_proven_by_a_case_or_says_why_not() {
    let named = named();
    for page in OperatorPage::ALL {
        for rule in rules(page) {
            let cases = named[&page].get(&rule.id).map_or(0, Vec::len);
            match &rule.not_proven_by_cases {
                None => assert!(cases > 0, "no case proves {}", rule.link()),
                Some(why) => {
                    assert!(why.ends_with('.'), "{} does not say why no case proves it", rule.link());
                    assert_eq!(cases, 0, "{} is proven: {:?}", rule.link(), named[&page][&rule.id]);
                }
            }
        }
    }
}

/// The message with which a folder is refused that holds a copy of the first case, edited by `edit`.
fn refusal(edit: impl FnOnce(&str) -> String) -> String {
    let cases = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../golden/cases"));
    let original = cases.join("decode-mode0-f32-f32");
    let copy = TempDir::new().unwrap();
    let folder = copy.path().join("copied");
    fs::create_dir(&folder).unwrap();
    fs::copy(original.join("tensors.safetensors"), folder.join("tensors.safetensors")).unwrap();
    let yaml = fs::read_to_string(original.join("case.yaml")).unwrap();
    let edited = edit(&yaml);
    fs::write(folder.join("case.yaml"), &edited).unwrap();
    match read_cases(copy.path()) {
        Ok(cases) => {
            assert_eq!(cases.len(), 1);
            assert_eq!(yaml, edited, "an edited case is refused");
            String::new()
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_folder_that_is_no_case_says_where_and_why() {
    let steps = |yaml: &str| yaml.find("steps:").expect("a case has steps");
    type Edit<'a> = &'a dyn Fn(&str) -> String;
    let edits: [(Edit<'_>, &str); 8] = [
        (&|yaml| format!("{}steps: []\n", &yaml[..steps(yaml)]), "no steps"),
        (&|yaml| yaml[..steps(yaml)].to_owned(), "missing field `steps`"),
        (&|yaml| format!("misspelt: 1\n{yaml}"), "misspelt"),
        (&|yaml| yaml.replace("rules: [", "rules: [scores, "), "KeyValueCache has no rule scores"),
        (&|yaml| yaml.replace("rules:", "proves:"), "unknown field `proves`"),
        (&|yaml| format!("domain: opmx\n{yaml}"), "domain is Some(\"opmx\"), expected None"),
        (&|yaml| yaml.replace("attributes: {", "attributes: {pagesize: 1, "), "no attribute is called pagesize"),
        (&|yaml| yaml.replace("T1: float", "T1: double"), "no element type is called double"),
    ];
    for (edit, expected) in edits {
        let message = refusal(edit);
        assert!(message.contains("copied") && message.contains(expected), "{expected}: {message}");
    }
}

#[test]
fn a_folder_without_cases_is_an_error() {
    let empty = TempDir::new().unwrap();
    assert!(read_cases(empty.path()).unwrap_err().to_string().contains("no case"));
    assert!(read_cases(&empty.path().join("absent")).is_err());
}

#[test]
fn a_seed_gives_the_same_cases_however_many() {
    let (few, many, other) = (cases(3, 7), cases(6, 7), cases(3, 8));
    let text = |case: &Case| format!("{case:?} {:?}", case.steps[0].inputs.current_key.bytes());
    assert_eq!(few.len(), 3);
    for i in 0..3 {
        assert_eq!(many[i].name, format!("random-7-{i}"));
        assert_eq!(text(&few[i]), text(&many[i]));
        assert_ne!(text(&few[i]), text(&other[i]));
    }
}

/// How many calls succeed, and how many are refused with each kind of error.
fn kinds<A, I>(cases: &[Case<A, I>]) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for step in cases.iter().flat_map(|case| &case.steps) {
        let kind = match &step.expected {
            Expected::Success(_) => "success",
            Expected::Refusal { kind, .. } => kind,
        };
        *kinds.entry(kind.to_owned()).or_default() += 1;
    }
    kinds
}

#[test]
fn every_kind_of_error_comes_up_and_most_calls_succeed() {
    let dynamic = kinds(&cases(3000, 1));
    let of_static = kinds(&static_cases(1000, 1));
    for kind in KINDS {
        let missing = match kind {
            "batch_too_large" | "position_range" => !of_static.contains_key(kind),
            _ => !dynamic.contains_key(kind),
        };
        assert!(!missing, "no call is refused as {kind}: {dynamic:?} {of_static:?}");
    }
    for kinds in [dynamic, of_static] {
        assert!(kinds["success"] * 2 > kinds.values().sum(), "{kinds:?}");
    }
}

#[test]
fn cases_that_are_written_are_read_as_they_were() {
    written(cases(60, 3), read_cases);
    written(static_cases(60, 3), static_batching::read_cases);
}

type Reader<A, I> = fn(&Path) -> Result<Vec<Case<A, I>>, ReadError>;

fn written<A: std::fmt::Debug + Sync, I: CaseInputs<A>>(mut cases: Vec<Case<A, I>>, read: Reader<A, I>) {
    let folder = tempfile::tempdir().unwrap();
    write(&mut cases, folder.path()).unwrap();
    let read = read(folder.path()).unwrap();
    cases.sort_by(|one, other| one.name.cmp(&other.name));
    assert_eq!(read.len(), cases.len());
    for (read, case) in read.iter().zip(&cases) {
        let named = |case: &Case<A, I>| format!("{} {:?} {}", case.name, case.folder, case.about);
        assert_eq!(named(read), named(case));
        assert_eq!((read.features(), read.nan), (case.features(), case.nan));
        assert!(read.state() == case.state() && answers(read) == answers(case), "{}", case.name);
        assert!(read.calls().iter().zip(case.calls()).all(|(read, case)| read.0 == case.0), "{}", case.name);
    }
}
