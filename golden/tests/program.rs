//! Programs in other languages, here the shell. A case's own tensors have the names that a result needs.
#![cfg(unix)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use kvcache_golden::{Expected, Implementation, Program, Report, Step, attention, cases, run, static_batching};
use kvcache_schema::ElementType;
use tempfile::TempDir;

/// A shell script as a program; it is there as long as the folder.
fn program(script: &str) -> (TempDir, Program) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("program");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    (folder, Program { path })
}

/// Whether there are several calls, of which every one succeeds or none does.
fn all<A>(expected: impl ExactSizeIterator<Item = A>, succeed: bool, is_success: impl Fn(A) -> bool) -> bool {
    expected.len() > 1 && { expected }.all(|expected| is_success(expected) == succeed)
}

/// Five of the cases whose calls all succeed, or of which none does.
fn five<A, I>(cases: Vec<kvcache_golden::Case<A, I>>, succeed: bool) -> Vec<kvcache_golden::Case<A, I>> {
    let is_success = |step: &Step<I>| matches!(step.expected, Expected::Success(_));
    let cases: Vec<_> = cases.into_iter().filter(|case| all(case.steps.iter(), succeed, is_success)).take(5).collect();
    assert_eq!(cases.len(), 5);
    cases
}

/// Runs five cases of each operator on a script: those of KeyValueCache, dynamic and static, and of attention.
fn reports(script: &str, succeed: bool) -> [Report; 3] {
    let (_folder, program) = program(script);
    let is_success = |step: &attention::Step| matches!(step.expected, Expected::Success(_));
    // The answers of float32 cases are float32, as the oracle's are in every case.
    let attention: Vec<_> = attention::cases()
        .unwrap()
        .into_iter()
        .filter(|case| case.t1 == ElementType::Float32 && all(case.steps.iter(), succeed, is_success))
        .take(5)
        .collect();
    assert_eq!(attention.len(), 5);
    [
        run(&program as &dyn Implementation, &five(cases().unwrap(), succeed)),
        run(&program, &five(static_batching::cases().unwrap(), succeed)),
        attention::run(&program, &attention),
    ]
}

/// One test: a script that one thread is writing cannot be started while another thread starts one of its own.
#[test]
fn a_program_passes_with_the_right_answers_alone() {
    for right in reports("cp \"$1/tensors.safetensors\" \"$2\"", true) {
        assert_eq!((right.passed(), right.failed()), (5, 0), "{right}");
    }
    for (script, succeed, expected) in [
        ("echo no such operator >&2; exit 3", true, "no such operator"),
        ("true", true, "wrote no result"),
        ("echo rubbish > \"$2\"", true, "result cannot be read"),
        ("cp \"$1/tensors.safetensors\" \"$2\"", false, "result cannot be read"),
    ] {
        for report in reports(script, succeed) {
            assert_eq!(report.failed(), 5, "{script}: {report}");
            assert!(
                report.failures().all(|(_, difference)| difference.to_string().contains(expected)),
                "{script}: {report}"
            );
        }
    }
}
