//! A folder that cannot be read as a case is an error that says where and why, never a case that passes.

use std::fs;
use std::path::Path;

use kvcache_conformance::read_cases;
use tempfile::TempDir;

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
