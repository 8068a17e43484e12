//! The program as it is called: its exit status, its reports, and what becomes of programs under test that misbehave.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Cases of floats whose every call succeeds: a case's own tensors are a right result.
const FILTER: [&str; 4] = ["--suite", "key-value-cache", "--filter", "decode-mode0-f32-f32"];

/// A program under test, as a script for `sh`, which has the case's folder and the result's file as `$1` and `$2`.
const RIGHT: &str = "cp \"$1/tensors.safetensors\" \"$2\"";

fn conformance(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvcache-conformance")).args(arguments).output().unwrap()
}

fn on(script: &str, arguments: &[&str]) -> Output {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("my program.sh");
    fs::write(&path, script).unwrap();
    let command = format!("sh '{}' {{case}} {{output}}", path.display());
    conformance(&[&["--program", &command], arguments].concat())
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn right_answers_exit_with_0_and_a_table_by_rule() {
    let output = on(RIGHT, &FILTER);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(text.contains("KeyValueCache.md#rule-"), "{text}");
    assert!(text.lines().last().unwrap().contains(": 1 passed, 0 failed, "), "{text}");
}

#[test]
fn nothing_that_passes_is_a_failure() {
    let output = on("exit 3", &["--suite", "key-value-cache", "--filter", "decode-mode1"]);
    assert_eq!(output.status.code(), Some(1));
    // Why it gave no results is not guessed.
    assert!(stdout(&output).contains("failures are of cases that could not be run"), "{}", stdout(&output));
    assert!(!stdout(&output).contains("page-index"), "{}", stdout(&output));
    let folder = TempDir::new().unwrap();
    let profile = folder.path().join("profile.yaml");
    fs::write(&profile, "{name: none, outside: skip, operators: {KeyValueCache: {T1: [int64]}}}").unwrap();
    let output = on(RIGHT, &[&FILTER[..], &["--profile", profile.to_str().unwrap()]].concat());
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("unsupported: T1 is float32, and the profile has int64 (1 case)"), "{text}");
}

#[test]
fn reports_are_written_as_json_and_junit() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("report");
    let write = |form: &str| {
        let output = on(RIGHT, &[&FILTER[..], &["--report", form, "--output", file.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let summary = stdout(&output);
        assert!(summary.lines().count() == 1 && summary.contains(": 1 passed, 0 failed, "), "{summary}");
        fs::read_to_string(&file).unwrap()
    };
    let json: Value = serde_json::from_str(&write("json")).unwrap();
    assert_eq!((&json["summary"]["passed"], &json["conforms"]), (&1.into(), &true.into()));
    let xml = write("junit");
    let document = roxmltree::Document::parse(&xml).unwrap();
    let root = document.root_element();
    assert_eq!((root.tag_name().name(), root.attribute("failures")), ("testsuites", Some("0")));
    let cases = root.descendants().filter(|node| node.has_tag_name("testcase"));
    assert_eq!(cases.count(), json["cases"].as_array().unwrap().len());
}

#[test]
fn cases_are_listed_and_taken_from_a_folder() {
    let listed = conformance(&[&["--list"], &FILTER[..]].concat());
    assert_eq!(listed.status.code(), Some(0));
    let text = stdout(&listed);
    assert!(text.lines().count() == 1 && text.starts_with("key-value-cache/decode-mode0-f32-f32: "), "{text}");
    let all = stdout(&conformance(&["--list"]));
    for suite in ["key-value-cache/", "static/", "attention/"] {
        assert!(all.lines().any(|line| line.starts_with(suite)), "{suite}");
    }

    let folder = TempDir::new().unwrap();
    let case = folder.path().join("cases/copied");
    fs::create_dir_all(&case).unwrap();
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/cases").join(FILTER[3]);
    for file in ["case.yaml", "tensors.safetensors"] {
        fs::copy(original.join(file), case.join(file)).unwrap();
    }
    let from = ["--cases", folder.path().to_str().unwrap()];
    let listed = stdout(&conformance(&[&["--list"], &from[..]].concat()));
    assert!(listed.lines().count() == 1 && listed.starts_with("key-value-cache/copied: "), "{listed}");
    assert_eq!(on(RIGHT, &from).status.code(), Some(0));
    let absent = conformance(&[&["--list", "--suite", "static"], &from[..]].concat());
    assert_eq!(absent.status.code(), Some(2), "{}", stdout(&absent));
}

#[test]
fn faults_of_the_arguments_and_of_files_exit_with_2_and_say_why() {
    let folder = TempDir::new().unwrap();
    let profile = folder.path().join("profile.yaml");
    fs::write(&profile, "{name: x, outside: refuse, operators: {KeyValueCache: {pagesize: [1]}}}").unwrap();
    let (profile, folder) = (profile.to_str().unwrap(), folder.path().to_str().unwrap());
    let program = ["--program", "true"];
    let with = |arguments: &[&'static str]| [&program[..], arguments].concat();
    for (arguments, expected) in [
        (vec![], "--program"),
        (vec!["--program", "true {case}", "--suite", "static"], "has no {output}"),
        (
            vec!["--program", "true {case}", "--suite", "static", "--serve"],
            "a program that serves reads the paths from its standard input",
        ),
        (vec!["--program", "./nope", "--suite", "static"], "there is no program \"./nope\""),
        (with(&["--random", "5", "--suite", "attention"]), "only the suites key-value-cache and static"),
        (vec!["--program", "true", "--list"], "cannot be used with"),
        (with(&["--suite", "static", "--filter", "no such case"]), "no case has a name that contains \"no such case\""),
        (with(&["--suite", "dynamic"]), "key-value-cache"),
        (with(&["--report", "html"]), "junit"),
        (with(&["--timeout", "0"]), "no time at all"),
        (with(&["--jobs", "0"]), "--jobs"),
        ([&program[..], &["--suite", "static", "--profile", profile]].concat(), "\"pagesize\""),
        ([&program[..], &["--cases", folder]].concat(), "none of the folders cases, static_cases"),
        ([&with(&FILTER)[..], &["--output", "/no/such/folder/report"]].concat(), "/no/such/folder/report: "),
    ] {
        let output = conformance(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stdout(&output));
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
}

/// A program has the folders of random cases, too: here it gives back what their files expect.
#[test]
fn random_cases_are_listed_and_run() {
    let listed = conformance(&["--list", "--random", "30", "--seed", "5", "--filter", "random-5-"]);
    assert_eq!(listed.status.code(), Some(0), "{}", stderr(&listed));
    let text = stdout(&listed);
    assert!(text.lines().count() == 60 && text.lines().all(|line| line.contains("/random-5-")), "{text}");
    let random = ["--random", "30", "--seed", "5", "--filter", "random-5-", "--suite", "static"];
    let text = stdout(&on(RIGHT, &random));
    assert!(!text.contains("wrote no result") && !text.contains(" 0 passed"), "{text}");
}

#[cfg(feature = "backends")]
#[test]
fn a_backend_is_tested_and_must_refuse_what_its_profile_leaves_out() {
    let output = conformance(&[&["--backend", "reference"], &FILTER[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    assert!(stdout(&output).ends_with("not run\n"), "{}", stdout(&output));

    let profile = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/profiles/float16-paged-head-major.yaml");
    let output =
        conformance(&[&["--backend", "reference", "--profile", profile.to_str().unwrap()], &FILTER[..]].concat());
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("decode-mode0-f32-f32: call 0: not refused\n"), "{text}");

    let several = conformance(&[&["--backend", "all", "--report", "json"], &FILTER[..]].concat());
    assert_eq!(several.status.code(), Some(2), "{}", stdout(&several));
}
