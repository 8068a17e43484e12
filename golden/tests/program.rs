//! Programs in other languages, here the shell. A case's own tensors have the names that a result needs.
#![cfg(unix)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use kvcache_golden::{Case, Expected, Program, Report, cases, run};
use tempfile::TempDir;

/// Runs some cases, of which every call succeeds or of which none does, on a shell script.
fn report(script: &str, succeed: bool) -> Report {
    let of_kind = |case: &Case| {
        case.steps.iter().all(|step| matches!(step.expected, Expected::Success(_)) == succeed) && case.steps.len() > 1
    };
    let cases: Vec<_> = cases().unwrap().into_iter().filter(of_kind).take(5).collect();
    assert_eq!(cases.len(), 5);
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("program");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    run(&Program { path }, &cases)
}

/// One test: a script that one thread is writing cannot be started while another thread starts one of its own.
#[test]
fn a_program_passes_with_the_right_answers_alone() {
    let right = report("cp \"$1/tensors.safetensors\" \"$2\"", true);
    assert_eq!((right.passed, right.failures.len()), (5, 0), "{right}");
    for (script, succeed, expected) in [
        ("echo no such operator >&2; exit 3", true, "no such operator"),
        ("true", true, "wrote no result"),
        ("echo rubbish > \"$2\"", true, "result cannot be read"),
        ("cp \"$1/tensors.safetensors\" \"$2\"", false, "result cannot be read"),
    ] {
        let report = report(script, succeed);
        assert_eq!(report.failures.len(), 5, "{script}: {report}");
        assert!(report.failures.iter().all(|failure| failure.difference.contains(expected)), "{script}: {report}");
    }
}
