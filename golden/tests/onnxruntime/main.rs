//! Libraries of custom operators that crash, hang, or have no operator.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kvcache_golden::onnxruntime::{Library, OpenError, Options, Provider, RuntimeError, worker};
use kvcache_golden::{Case, Expected, Implementation, Outcome, Step, Types, cases};
use kvcache_schema::ElementType;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    if let Some(code) = worker() {
        return code;
    }
    let trials = [
        ("a_crash_fails_one_case", a_crash_fails_one_case as fn() -> Result<(), Failed>),
        ("a_crash_at_load_fails_the_case", a_crash_at_load_fails_the_case),
        ("a_call_that_does_not_return_ends_in_time", a_call_that_does_not_return_ends_in_time),
        ("a_library_without_the_operators_is_named", a_library_without_the_operators_is_named),
        ("an_operator_that_is_missing_is_unsupported", an_operator_that_is_missing_is_unsupported),
        ("files_that_are_no_libraries_are_named", files_that_are_no_libraries_are_named),
        ("a_provider_that_is_not_there_is_named", a_provider_that_is_not_there_is_named),
    ];
    let trials = trials.map(|(name, test)| Trial::test(name, test));
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

/// The library of `misbehaving.rs`, in one of its domains.
fn options(domain: &str) -> Options {
    // Beside this test's own folder.
    let mut library = env::current_exe().expect("the path of this test");
    library.pop();
    library.set_file_name("examples");
    library.push("libmisbehaving.so");
    Options { domain: domain.to_owned(), ..Options::new(library) }
}

fn open(options: Options) -> Result<Library, OpenError> {
    Library::open(options)
}

/// A case of one call on float32, with so many layers.
fn case(num_layer: i64) -> Case {
    let float32 = Types { t1: ElementType::Float32, t2: ElementType::Float32, t3: None };
    let is_so = |case: &Case| {
        case.attributes.num_layer == num_layer
            && case.types == float32
            && matches!(case.steps.as_slice(), [Step { expected: Expected::Success(_), .. }])
    };
    cases().expect("the cases").into_iter().find(is_so).expect("a case on float32")
}

fn error(library: &Library, case: &Case) -> String {
    library.run(case).map(|results| format!("{results:?}")).expect_err("the case cannot be run")
}

fn a_crash_fails_one_case() -> Result<(), Failed> {
    let library = open(options("aborts"))?;
    for _ in 0..2 {
        let message = error(&library, &case(2));
        assert!(message.starts_with("call 0: the process of the library ended with SIGABRT"), "{message}");
        assert!(message.ends_with("after it printed: two layers are too many"), "{message}");
        let results = library.run(&case(1))?;
        let Outcome::Refused { message, .. } = &results[0].outcome else { panic!("{results:?}") };
        assert!(message.contains("never in the mood"), "{message}");
    }
    Ok(())
}

fn a_crash_at_load_fails_the_case() -> Result<(), Failed> {
    let message = error(&open(options("aborts-at-load"))?, &case(1));
    assert!(message.contains("SIGABRT"), "{message}");
    Ok(())
}

fn a_call_that_does_not_return_ends_in_time() -> Result<(), Failed> {
    let library = open(Options { time_limit: Duration::from_secs(5), ..options("hangs") })?;
    let start = Instant::now();
    let message = error(&library, &case(1));
    assert_eq!(message, "call 0: no answer within 5 s");
    assert!(start.elapsed() < Duration::from_secs(30));
    Ok(())
}

fn a_library_without_the_operators_is_named() -> Result<(), Failed> {
    let message = open(options("no.such.domain")).err().expect("it is refused").to_string();
    for expected in ["libmisbehaving.so registers none of the operators in no.such.domain", "is not a registered"] {
        assert!(message.contains(expected), "{message}");
    }
    Ok(())
}

fn an_operator_that_is_missing_is_unsupported() -> Result<(), Failed> {
    let library = open(options("aborts"))?;
    assert_eq!(Implementation::cannot_run(&library, &case(1)), None);
    let other = &kvcache_golden::static_batching::cases()?[0];
    let reason = Implementation::cannot_run(&library, other);
    assert_eq!(reason.as_deref(), Some("the library registers no KeyValueCache in opmx"));
    let other = &kvcache_golden::attention::cases()?[0];
    let reason = kvcache_golden::attention::Implementation::cannot_run(&library, other).expect("a reason");
    assert!(reason.starts_with("the library registers no MultiHead"), "{reason}");
    Ok(())
}

fn files_that_are_no_libraries_are_named() -> Result<(), Failed> {
    let message = |options| open(options).err().expect("it is refused").to_string();
    let none = PathBuf::from("/nonexistent/libnone.so");
    let got = message(Options::new(&none));
    assert!(got.contains("/nonexistent/libnone.so"), "{got}");
    let got = message(Options { runtime: Some(none), ..options("aborts") });
    assert!(got.contains("/nonexistent/libnone.so could not be opened"), "{got}");
    // A library, but not of ONNX Runtime.
    let Options { library, .. } = options("aborts");
    let got = message(Options { runtime: Some(library), ..options("aborts") });
    assert!(got.contains("is no library of ONNX Runtime"), "{got}");
    // And the other way round: without the entry point of a library of operators.
    let runtime = kvcache_golden::onnxruntime::runtime_path(None)?;
    let got = message(Options::new(runtime));
    assert!(got.contains("RegisterCustomOps"), "{got}");
    let program = Options { worker: Some(Path::new("/nonexistent/program").to_owned()), ..options("aborts") };
    assert!(message(program).contains("the worker process could not be started"));
    Ok(())
}

fn a_provider_that_is_not_there_is_named() -> Result<(), Failed> {
    match open(Options { provider: Provider::Cuda, ..options("aborts") }) {
        Err(error @ OpenError::NoProvider { .. }) => {
            assert!(error.to_string().contains("has no CUDAExecutionProvider, only "), "{error}");
        }
        Err(error @ OpenError::OnDevice { .. }) => {
            assert!(error.to_string().contains("cannot run cases on CUDAExecutionProvider yet"), "{error}");
        }
        Err(error) => return Err(error.into()),
        Ok(_) => return Err("cases that should be on a GPU are run".into()),
    }
    let not_found = RuntimeError::NotFound(vec!["no library is named".to_owned(), "python3: no".to_owned()]);
    assert_eq!(not_found.to_string(), "there is no ONNX Runtime: no library is named; python3: no");
    Ok(())
}
