//! Random cases: the same for a seed, of every kind, and the same again when they are written and read.

use std::collections::BTreeMap;

use kvcache_conformance::oracle::KINDS;
use kvcache_conformance::random::{cases, static_cases, write};
use kvcache_conformance::{Case, CaseInputs, Expected, ReadError, Suite, read_cases, static_batching};

use crate::answers::answers;

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

type Reader<A, I> = fn(&std::path::Path) -> Result<Vec<Case<A, I>>, ReadError>;

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
