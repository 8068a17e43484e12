//! The suites in the layout of ONNX's backend tests. `python_tests/test_backend_tests.py` runs them in ONNX Runtime.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kvcache_golden::backend_test::{TestCase, Written, export};
use kvcache_golden::onnx::TensorProto;
use kvcache_golden::{Expected, StepInputs, Tensor, attention, cases, static_batching};
use prost::Message;
use tempfile::TempDir;

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn tensor(path: PathBuf) -> TensorProto {
    TensorProto::decode(fs::read(&path).unwrap().as_slice())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_call_of_every_case_is_a_data_set() {
    let (dynamic, of_static_batching, of_attention) =
        (cases().unwrap(), static_batching::cases().unwrap(), attention::cases().unwrap());
    let calls = dynamic.iter().map(|case| case.steps.len()).sum::<usize>()
        + of_static_batching.iter().map(|case| case.steps.len()).sum::<usize>()
        + of_attention.iter().map(|case| case.steps.len()).sum::<usize>();
    let folder = TempDir::new().unwrap();
    let all = || {
        let tests = dynamic.iter().map(TestCase::from).chain(of_static_batching.iter().map(TestCase::from));
        tests.chain(of_attention.iter().map(TestCase::from))
    };
    let Written { tests, refused, data_sets } = export(folder.path(), all()).unwrap();
    assert_eq!(data_sets, calls);
    assert_eq!(names(folder.path()), ["README.md", "node", "refused"].map(str::to_owned).into());

    let mut sets = 0;
    for (part, count) in [("node", tests), ("refused", refused)] {
        let tests = names(&folder.path().join(part));
        assert_eq!(tests.len(), count);
        assert!(count > 100, "{count} {part}");
        for test in tests {
            let test = folder.path().join(part).join(test);
            let mut inside = names(&test);
            assert!(inside.remove("model.onnx"), "{test:?}");
            inside.remove("any_nan.txt");
            let numbered: BTreeSet<_> = (0..inside.len()).map(|i| format!("test_data_set_{i}")).collect();
            assert_eq!(inside, numbered, "{test:?}");
            for set in &inside {
                let files = names(&test.join(set));
                assert_eq!(files.contains("expected_error.txt"), part == "refused", "{test:?}");
                assert_eq!(files.contains("output_0.pb"), part == "node", "{test:?}");
                assert!(files.contains("input_0.pb"), "{test:?}");
                sets += 1;
            }
        }
    }
    assert_eq!(sets, calls);

    let again = export(folder.path(), all()).unwrap_err().to_string();
    assert!(again.contains("node cannot be written"), "{again}");
}

#[test]
fn the_state_after_a_call_is_the_next_ones_input() {
    let cases = cases().unwrap();
    let is_chosen = |case: &kvcache_golden::Case| {
        case.steps.len() > 1
            && case.scale.is_some()
            && case.steps.iter().all(|step| matches!(step.expected, Expected::Success(_)))
    };
    let mut case = cases.into_iter().find(is_chosen).expect("a case of several calls");
    for StepInputs { max_seqlen, max_kvlen, .. } in case.steps.iter_mut().map(|step| &mut step.inputs) {
        // Calls whose inputs have the same ranks have one model.
        for bound in [max_seqlen, max_kvlen] {
            *bound = Tensor::new(bound.element(), Vec::new(), bound.bytes()).unwrap();
        }
    }
    let folder = TempDir::new().unwrap();
    export(folder.path(), [TestCase::from(&case)]).unwrap();
    let [test] = Vec::from_iter(names(&folder.path().join("node"))).try_into().expect("one test");
    let set = |i: usize| folder.path().join("node").join(&test).join(format!("test_data_set_{i}"));
    assert_eq!(tensor(set(0).join("input_8.pb")).tensor().as_ref(), Some(&case.cache));
    for (i, step) in case.steps.iter().enumerate() {
        let Expected::Success(after) = &step.expected else { unreachable!("all succeed") };
        for (name, expected) in [
            ("input_0.pb", &step.inputs.current_key),
            ("output_0.pb", &after.outputs.key),
            ("output_1.pb", &after.outputs.value),
            ("inplace_8.pb", &after.cache),
        ] {
            assert_eq!(tensor(set(i).join(name)).tensor().as_ref(), Some(expected), "{name} of call {i}");
        }
        for (file, name) in [("input_8.pb", "cache"), ("inplace_9.pb", "scale"), ("output_1.pb", "value")] {
            assert_eq!(tensor(set(i).join(file)).name, name);
        }
        if i > 0 {
            for k in [8, 9] {
                let after = tensor(set(i - 1).join(format!("inplace_{k}.pb")));
                assert_eq!(tensor(set(i).join(format!("input_{k}.pb"))), after);
            }
        }
    }
}

#[test]
fn a_refused_call_says_what_is_expected_of_it() {
    let cases = cases().unwrap();
    let refused = |case: &&kvcache_golden::Case| matches!(case.steps[0].expected, Expected::Refusal { .. });
    let case = cases.iter().find(refused).expect("a refused call");
    let Expected::Refusal { kind, mentions } = &case.steps[0].expected else { unreachable!("it is refused") };
    let folder = TempDir::new().unwrap();
    export(folder.path(), [TestCase::from(case)]).unwrap();
    let test = names(&folder.path().join("refused")).pop_first().expect("a test");
    let set = folder.path().join("refused").join(test).join("test_data_set_0");
    let text = fs::read_to_string(set.join("expected_error.txt")).unwrap();
    assert!(text.lines().eq([kind].into_iter().chain(mentions)), "{text}");
    assert_eq!(tensor(set.join("inplace_8.pb")), tensor(set.join("input_8.pb")));
}
