//! Programs in other languages, here the shell. A case's own tensors have the names that a result needs.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use kvcache_conformance::{Expected, Implementation, Program, Report, Suite, run};
use kvcache_schema::ElementType;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

use crate::answers::{ATTENTION, DYNAMIC, STATIC, is_legal};

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

/// The report on a script of five cases, of several calls each, which all succeed or all are refused.
fn report<C: Suite + Clone>(program: &Program, cases: &[C], succeed: bool) -> Report {
    let is_fit = |case: &&C| {
        let mut calls = case.calls().into_iter();
        // The answers of float32 cases are float32, as the oracle's of attention are in every case.
        (case.types()["T1"] == ElementType::Float32 || C::NAME != "attention")
            && calls.len() > 1
            && calls.all(|(_, expected)| matches!(expected, Expected::Success(_)) == succeed)
    };
    let cases: Vec<_> = cases.iter().filter(is_fit).take(5).cloned().collect();
    assert_eq!(cases.len(), 5);
    run(program, &cases)
}

/// Runs five cases of each suite on a script.
fn reports(script: &str, succeed: bool) -> [Report; 3] {
    let (_folder, program) = program(script);
    [report(&program, &DYNAMIC, succeed), report(&program, &STATIC, succeed), report(&program, &ATTENTION, succeed)]
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
    let mut cases = DYNAMIC.clone();
    cases.retain(|case| case.name.starts_with("decode-mode0-f32-") || case.name == "decode-mode1-f16-f16");
    let report = run(&program, &cases);
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
    let case = &DYNAMIC[0];
    let folder = TempDir::new().unwrap();
    let mark = folder.path().join("mark");
    let script = format!("(sleep 2; touch {}) & echo waiting; wait", mark.display());
    let program = Program::parse(&format!("sh -c '{script}' {{case}} {{output}}")).unwrap();
    let start = Instant::now();
    let run = |limit| program.clone().with_limit(limit).run(case).unwrap_err();
    assert_eq!(run(Duration::from_millis(300)), "the program was ended after 0.3 seconds: waiting");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    thread::sleep(Duration::from_millis(2500).saturating_sub(start.elapsed()));
    assert!(!mark.exists(), "its child runs on");
}

/// The bytes of an int4 cache lie in one row, as in the case, or have its axes, two elements in a byte.
#[test]
fn a_packed_cache_has_its_shape() {
    let is_int4 = |case: &&kvcache_conformance::Case| is_legal(*case) && case.types.t2 == ElementType::Int4;
    let case = DYNAMIC.iter().find(is_int4).unwrap();
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
        let report = run(&program, std::slice::from_ref(case)).to_string();
        assert_eq!(report.contains("1 passed"), passes, "{report}");
        assert_eq!(report.contains(&format!("expected [{bytes}] or {packed:?}")), !passes, "{report}");
    }
}
