//! Every golden case on the built library, through ONNX Runtime as the conformance suite runs it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kvcache_golden::onnxruntime::{Library, Options, worker};
use kvcache_golden::performance::{Measured, Row, measure, workloads};
use kvcache_golden::{attention, cases, run, static_batching};
use kvcache_schema::{DOMAINS, static_key_value_cache};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    if let Some(code) = worker() {
        return code;
    }
    let trials = DOMAINS.into_iter().zip(static_key_value_cache::DOMAINS).map(|(domain, static_domain)| {
        Trial::test(format!("all_cases_pass_in_{domain}_and_{static_domain}"), move || {
            all_cases_pass(Options {
                domain: domain.to_owned(),
                static_domain: static_domain.to_owned(),
                ..Options::new(operator_library())
            })
        })
    });
    let timed = Trial::test("a_short_call_is_timed", a_short_call_is_timed);
    libtest_mimic::run(&Arguments::from_args(), trials.chain([timed]).collect()).exit_code()
}

fn all_cases_pass(options: Options) -> Result<(), Failed> {
    let library = Library::open(options)?;
    let (dynamic, of_static_batching, of_attention) = (cases()?, static_batching::cases()?, attention::cases()?);
    let reports = [
        (run(&library, &dynamic), dynamic.len()),
        (run(&library, &of_static_batching), of_static_batching.len()),
        (attention::run(&library, &of_attention), of_attention.len()),
    ];
    for (report, count) in &reports {
        println!("ONNX Runtime {}: {report}", library.runtime_version());
        assert_eq!((report.failed(), report.passed()), (0, *count), "{report}");
    }
    Ok(())
}

/// The answers before and after the timing are the oracle's, or there were no times.
fn a_short_call_is_timed() -> Result<(), Failed> {
    let library = Library::open(Options::new(operator_library()))?;
    let short: Vec<_> = workloads().into_iter().filter(|workload| workload.name.contains("short")).collect();
    let table = measure(&library, &short, 3)?;
    println!("{table}");
    assert!(matches!(table.rows[..], [Row { measured: Measured::Times { .. }, .. }]), "{table}");
    Ok(())
}

/// The library that `KVCACHE_ORT_LIB` names, or else the release build beside this test.
fn operator_library() -> PathBuf {
    match env::var_os("KVCACHE_ORT_LIB") {
        Some(path) => path.into(),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("release/libkvcache_ort.so"),
    }
}
