//! Programs in other languages, here the shell. A case's own tensors have the names that a result needs.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use kvcache_conformance::{
    Expected, Implementation, Program, Report, Step, StepInputs, attention, cases, run, static_batching,
};
use kvcache_schema::ElementType;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

/// Reads cases and copies their tensors, but for some: then it crashes, hangs or refuses to.
const SERVES: &str = r#"
    tab=$(printf '\t')
    while IFS="$tab" read -r case output; do
        case "$(cat "$case/case.yaml")" in
            *'T2: int4'*) echo ouch >&2; kill -SEGV $$;;
            *'T2: int8'*) sleep 60;;
            *'cache_mode: 1'*) echo no pages;;
            *) cp "$case/tensors.safetensors" "$output"; echo done;;
        esac
    done
    echo end >> "$(dirname "$0")/ends""#;

/// A shell script as a program; it is there as long as the folder. The shell reads it: a file that is written while
/// another thread starts a process could not be started itself.
fn program(script: &str) -> (TempDir, Program) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("program");
    fs::write(&path, script).unwrap();
    let program = Program::parse(&format!("sh '{}'", path.display())).unwrap();
    (folder, program)
}

/// Whether there are several calls, of which every one succeeds or none does.
fn all<A>(expected: impl ExactSizeIterator<Item = A>, succeed: bool, is_success: impl Fn(A) -> bool) -> bool {
    expected.len() > 1 && { expected }.all(|expected| is_success(expected) == succeed)
}

/// Five of the cases whose calls all succeed, or of which none does.
fn five<A, I>(cases: Vec<kvcache_conformance::Case<A, I>>, succeed: bool) -> Vec<kvcache_conformance::Case<A, I>> {
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
        ("cp \"$1/tensors.safetensors\" \"$2\"; echo at the end; kill -SEGV $$", true, "SIGSEGV"),
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

/// One process runs many cases. One that crashes or hangs fails its case, and another one runs the next.
#[test]
fn a_program_that_serves_is_started_again() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("program");
    fs::write(&path, SERVES).unwrap();
    let program = Program::serving(&format!("sh '{}'", path.display())).unwrap().with_limit(Duration::from_secs(3));
    let mut cases = cases().unwrap();
    cases.retain(|case| case.name.starts_with("decode-mode0-f32-") || case.name == "decode-mode1-f16-f16");
    let report = run(&program as &dyn Implementation, &cases);
    let mut got: Vec<_> = report.failures().map(|(entry, got)| (&*entry.case, got.to_string())).collect();
    got.sort();
    let [(int4, crash), (int8, hang), (paged, answer)] = &got[..] else { panic!("{report}") };
    assert_eq!(
        [*int4, *int8, *paged],
        ["decode-mode0-f32-int4-f32", "decode-mode0-f32-int8-f32", "decode-mode1-f16-f16"]
    );
    assert!(crash.contains("SIGSEGV") && crash.ends_with(": ouch"), "{crash}");
    assert_eq!(hang, "the program was ended after 3 seconds");
    assert_eq!(answer, "the program answered \"no pages\", expected \"done\"");
    assert_eq!(report.passed(), 1, "{report}");
    let ends = || fs::read_to_string(folder.path().join("ends")).unwrap_or_default();
    assert_eq!(ends(), "", "one that has nothing to do waits");
    drop(program);
    assert_eq!(ends(), "end\n", "there is one, which ends with its input");
}

/// What hangs is ended with all that it has started, even if that holds the program's outputs open.
#[test]
fn a_program_that_hangs_is_ended() {
    let case = cases().unwrap().swap_remove(0);
    let folder = TempDir::new().unwrap();
    let mark = folder.path().join("mark");
    let script = format!("(sleep 2; touch {}) & echo waiting; wait", mark.display());
    let program = Program::parse(&format!("sh -c '{script}' {{case}} {{output}}")).unwrap();
    let start = Instant::now();
    let run = |limit| Implementation::<_, StepInputs>::run(&program.clone().with_limit(limit), &case).unwrap_err();
    assert_eq!(run(Duration::from_millis(300)), "the program was ended after 0.3 seconds: waiting");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    thread::sleep(Duration::from_millis(2500).saturating_sub(start.elapsed()));
    assert!(!mark.exists(), "its child runs on");
}

/// What a program leaves behind does not hold up the run.
#[test]
fn a_program_ends_when_it_ends_itself() {
    let case = cases().unwrap().swap_remove(0);
    let program = Program::parse("sh -c 'sleep 20 & exit 3'").unwrap();
    let start = Instant::now();
    let error = Implementation::<_, StepInputs>::run(&program, &case).unwrap_err();
    assert_eq!(error, "the program ended with exit status: 3");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_program_that_cannot_be_started_says_so() {
    let case = cases().unwrap().swap_remove(0);
    let program = Program::new("/no/such/program");
    let error = Implementation::<_, StepInputs>::run(&program, &case).unwrap_err();
    assert!(error.starts_with("/no/such/program could not be started: "), "{error}");
}

/// The bytes of an int4 cache lie in one row, as in the case, or have its axes, two elements in a byte.
#[test]
fn a_packed_cache_has_its_shape() {
    let cases: Vec<_> = cases().unwrap();
    let is_int4 = |case: &&kvcache_conformance::Case| {
        case.types.t2 == ElementType::Int4
            && case.steps.iter().all(|step| matches!(step.expected, Expected::Success(_)))
    };
    let case = cases.iter().find(is_int4).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden").join("cases").join(&case.name);
    let written = fs::read(folder.join("tensors.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&written).unwrap();
    let [axes @ .., last] = case.cache.shape() else { panic!("a cache has axes") };
    let (packed, bytes) = ([axes, &[last / 2]].concat(), case.cache.bytes().len());
    for (shape, passes) in [(vec![bytes], true), (packed.clone(), true), (vec![bytes / 2, 2], false)] {
        let folder = TempDir::new().unwrap();
        let result = folder.path().join("result");
        let reshaped = tensors.tensors().into_iter().map(|(name, view)| {
            let shape = if name.ends_with("cache") { shape.clone() } else { view.shape().to_vec() };
            (name, TensorView::new(view.dtype(), shape, view.data()).unwrap())
        });
        safetensors::serialize_to_file(reshaped, None, &result).unwrap();
        let (_folder, program) = program(&format!("cp '{}' \"$2\"", result.display()));
        let report = run(&program as &dyn Implementation, std::slice::from_ref(case)).to_string();
        assert_eq!(report.contains("1 passed"), passes, "{report}");
        assert_eq!(report.contains(&format!("expected [{bytes}] or {packed:?}")), !passes, "{report}");
    }
}
