//! How cases are read and written; the rules, each of which some case proves; `legal` on the golden cases; random ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use kvcache_conformance::random;
use kvcache_conformance::{
    ATTENTION_KINDS, CallResult, Case, Expected, KINDS, Operator, Outcome, Suite, files, legal, read_cases,
    read_results, rules,
};
use kvcache_schema::ElementType;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

use crate::answers::{CASES, answers, of_suite};

#[test]
fn every_rule_is_proven_by_a_case_or_says_why_not() {
    let mut named: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for Case { name, rules, operator, .. } in CASES.iter() {
        assert!(!rules.is_empty(), "{name} proves nothing");
        assert_eq!(rules.iter().collect::<BTreeSet<_>>().len(), rules.len(), "{name} names a rule twice");
        rules.iter().for_each(|rule| named.entry((*operator, rule)).or_default().push(name));
    }
    for rule in Operator::ALL.into_iter().flat_map(rules) {
        let cases = named.get(&(rule.operator, &rule.id)).map_or(&[][..], Vec::as_slice);
        match &rule.not_proven_by_cases {
            None => assert!(!cases.is_empty(), "no case proves {}", rule.link()),
            Some(why) => {
                assert!(why.ends_with('.'), "{} does not say why no case proves it", rule.link());
                assert!(cases.is_empty(), "{} is proven: {cases:?}", rule.link());
            }
        }
    }
}

#[test]
fn every_rule_has_an_anchor_on_the_page_that_it_links_to() {
    for link in Operator::ALL.into_iter().flat_map(rules).map(|rule| rule.link()) {
        let (page, anchor) = link.split_once('#').unwrap();
        let text = fs::read_to_string(format!("{}/../docs/{page}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert!(text.contains(&format!("id=\"{anchor}\"")), "{link}");
    }
}

/// Every call is legal or breaks the rule that its case says, and no other.
#[test]
fn legal_agrees_with_the_golden_cases() {
    let mut refused = BTreeSet::new();
    for case in CASES.iter() {
        for (i, step) in case.steps.iter().enumerate() {
            match (&step.expected, legal(&case.call(i))) {
                (Expected::Success(_), legal) => assert_eq!(legal, Ok(()), "{}: call {i}", case.name),
                (Expected::Refusal { kind, .. }, legal) => {
                    assert_eq!(legal.expect_err(&case.name), [kind], "{}: call {i}", case.name);
                    refused.insert(kind.clone());
                }
            }
        }
    }
    assert!(KINDS.iter().chain(&ATTENTION_KINDS).all(|&kind| refused.contains(kind)), "{refused:?}");
}

/// The message with which a folder is refused that holds a copy of a case, edited by `edit`.
fn refusal(case: &Case, edit: impl FnOnce(&str) -> String) -> String {
    let [yaml, tensors] = files(case).unwrap();
    let yaml = String::from_utf8(yaml).unwrap();
    let edited = edit(&yaml);
    assert_ne!(yaml, edited);
    refusal_of(&edited, &tensors)
}

/// The message with which a folder is refused that holds these files.
fn refusal_of(yaml: &str, tensors: &[u8]) -> String {
    let copy = TempDir::new().unwrap();
    let folder = copy.path().join("copied");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("case.yaml"), yaml).unwrap();
    fs::write(folder.join("tensors.safetensors"), tensors).unwrap();
    read_cases(copy.path()).unwrap_err().to_string()
}

/// Each element of an output has its tolerance.
#[test]
fn a_tolerance_of_another_shape_or_type_is_refused() {
    let case = of_suite(Suite::Attention).find(|case| case.is_legal()).unwrap();
    let [yaml, tensors] = files(case).unwrap();
    let tensors = SafeTensors::deserialize(&tensors).unwrap();
    for (dtype, shape) in [(Dtype::F32, vec![1]), (Dtype::F16, tensors.tensor("0.tolerance").unwrap().shape().to_vec())]
    {
        let bytes = vec![0; shape.iter().product::<usize>() * if dtype == Dtype::F32 { 4 } else { 2 }];
        let changed = TensorView::new(dtype, shape, &bytes).unwrap();
        let views = tensors.iter().filter(|(name, _)| *name != "0.tolerance").chain([("0.tolerance", changed)]);
        let message = refusal_of(str::from_utf8(&yaml).unwrap(), &safetensors::serialize(views, None).unwrap());
        assert!(message.contains("0.tolerance is not of float32 and its output's shape"), "{message}");
    }
}

#[test]
fn a_folder_that_is_no_case_says_where_and_why() {
    let steps = |yaml: &str| yaml.find("steps:").expect("a case has steps");
    type Edit<'a> = &'a dyn Fn(&str) -> String;
    let edits: [(Edit<'_>, &str); 10] = [
        (&|yaml| format!("{}steps: []\n", &yaml[..steps(yaml)]), "no steps"),
        (&|yaml| yaml[..steps(yaml)].to_owned(), "missing field `steps`"),
        (&|yaml| format!("misspelt: 1\n{yaml}"), "misspelt"),
        (&|yaml| yaml.replace("rules: [", "rules: [scores, "), "KeyValueCache has no rule scores"),
        (&|yaml| yaml.replace("rules:", "proves:"), "unknown field `proves`"),
        (&|yaml| format!("domain: opmy\n{yaml}"), "in the domain Some(\"opmy\")"),
        (&|yaml| yaml.replace("attributes: {", "attributes: {pagesize: 1, "), "no attribute is called pagesize"),
        (&|yaml| yaml.replace("T1: float", "T1: double"), "no element type is called double"),
        (&|yaml| yaml.replace("T1: float32, ", ""), "KeyValueCache with the types [\"T2\"]"),
        (&|yaml| yaml.replace(", T2: float32", ""), "KeyValueCache with the types [\"T1\"]"),
    ];
    let case = CASES.iter().find(|case| case.name == "decode-mode0-f32-f32").unwrap();
    for (edit, expected) in edits {
        let message = refusal(case, edit);
        assert!(message.contains("copied") && message.contains(expected), "{expected}: {message}");
    }
    let uncached = CASES.iter().find(|case| case.operator == Operator::MultiHeadAttention).unwrap();
    for name in ["T2", "T3"] {
        let message = refusal(uncached, |yaml| yaml.replace("types: {", &format!("types: {{{name}: float16, ")));
        assert!(message.contains("MultiHeadAttention with the types"), "{message}");
    }
    let empty = TempDir::new().unwrap();
    assert!(read_cases(empty.path()).unwrap_err().to_string().contains("no case"));
    assert!(read_cases(&empty.path().join("absent")).is_err());
}

#[test]
fn a_seed_gives_the_same_cases_however_many() {
    let of = |n, seed| random::cases(Suite::KeyValueCache, n, seed);
    let (few, many, other) = (of(3, 7), of(6, 7), of(3, 8));
    let text = |case: &Case| format!("{case:?} {:?}", case.steps[0].inputs["current_key"].bytes());
    for i in 0..3 {
        assert_eq!(many[i].name, format!("random-7-{i}"));
        assert_eq!(text(&few[i]), text(&many[i]));
        assert_ne!(text(&few[i]), text(&other[i]));
    }
}

#[test]
fn every_kind_of_error_comes_up_and_most_calls_succeed() {
    let (mut missing, mut legal, mut refused) = (BTreeSet::from(KINDS), 0, 0);
    for seed in 0..40 {
        let cases = [Suite::KeyValueCache, Suite::Static].map(|suite| random::cases(suite, 100, seed));
        for step in cases.into_iter().flatten().flat_map(|case| case.steps) {
            match step.expected {
                Expected::Success(_) => legal += 1,
                Expected::Refusal { kind, .. } => {
                    refused += 1;
                    missing.remove(kind.as_str());
                }
            }
        }
        if missing.is_empty() {
            break;
        }
    }
    assert!(missing.is_empty(), "no call is refused as {missing:?}");
    assert!(legal > refused, "{legal} calls are legal, {refused} are refused");
}

/// The files of random cases, as programs are given them.
#[test]
fn cases_that_are_written_are_read_as_they_were() {
    for suite in [Suite::KeyValueCache, Suite::Static] {
        let folder = TempDir::new().unwrap();
        let mut cases = random::cases(suite, 60, 3);
        for case in &cases {
            let [yaml, tensors] = files(case).unwrap();
            fs::create_dir(folder.path().join(&case.name)).unwrap();
            fs::write(folder.path().join(&case.name).join("case.yaml"), yaml).unwrap();
            fs::write(folder.path().join(&case.name).join("tensors.safetensors"), tensors).unwrap();
        }
        cases.sort_by(|one, other| one.name.cmp(&other.name));
        let read = read_cases(folder.path()).unwrap();
        assert_eq!(read.len(), cases.len());
        // A NaN that a conversion makes is one of the machine.
        let converts = |case: &&Case| case.any_nan && case.attributes["quant_bit"] == 0;
        assert!(suite != Suite::KeyValueCache || cases.iter().any(|case| converts(&case)));
        for (read, case) in read.iter().zip(&cases) {
            let named = |case: &Case| format!("{} {} {:?} {}", case.name, case.about, case.attributes, case.any_nan);
            assert_eq!(named(read), named(case));
            assert!((&read.cache, &read.scale) == (&case.cache, &case.scale), "{}", case.name);
            assert!(answers(read) == answers(case), "{}", case.name);
            let inputs = |case: &Case| case.steps.iter().map(|step| step.inputs.clone()).collect::<Vec<_>>();
            assert!(inputs(read) == inputs(case), "{}", case.name);
        }
    }
}

/// The tensors of a case of legal calls have the names that a program's results need.
#[test]
fn a_program_s_file_is_read() {
    for case in CASES.iter().filter(|case| case.is_legal() && case.operator.suite() != Suite::Attention) {
        let [_, tensors] = files(case).unwrap();
        assert!(read_results(case, &tensors).unwrap() == answers(case), "{}", case.name);
    }
    let case = &CASES[0];
    assert!(read_results(case, b"rubbish").unwrap_err().contains("result cannot be read"));
    let empty = safetensors::serialize(Vec::<(&str, TensorView<'_>)>::new(), None).unwrap();
    assert!(read_results(case, &empty).unwrap_err().contains("result cannot be read"));
    // A refusal is in the metadata.
    let is_fit = |case: &&Case| !case.is_legal() && case.steps.len() == 1 && case.scale.is_none();
    let refused = of_suite(Suite::KeyValueCache).filter(|case| case.t1() == ElementType::Float32).find(is_fit).unwrap();
    let cache = TensorView::new(Dtype::F32, refused.cache().shape().to_vec(), refused.cache().bytes()).unwrap();
    let metadata = [("0.error".to_owned(), "no".to_owned())].into_iter().collect();
    let file = safetensors::serialize([("0.cache", cache)], Some(metadata)).unwrap();
    let results = read_results(refused, &file).unwrap();
    assert_eq!((&results[0].outcome, &results[0].cache), (&Outcome::refused("no"), &refused.cache));
    // So is what the program does not do.
    let metadata = [("0.unsupported".to_owned(), "no".to_owned())].into_iter().collect();
    let file = safetensors::serialize(Vec::<(&str, TensorView<'_>)>::new(), Some(metadata)).unwrap();
    let declining = of_suite(Suite::KeyValueCache).find(|case| case.steps.len() > 1).unwrap();
    assert_eq!(read_results(declining, &file).unwrap(), [CallResult::unsupported("no")]);
}
