//! Every target passes on its kept inputs and, for as many seconds as `KVCACHE_FUZZ_SECONDS` says, on others near them,
//! made without a fuzzer: the same ones on each machine, or the first of them where it is slow.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, panic};

use kvcache_conformance::random::Unstructured;
use kvcache_fuzz::{TARGETS, Tally, Target, tally};

/// Replays what is kept of a target, and goes on from there.
fn run(target: &str) {
    let Target { form, per_second, run: body, .. } =
        TARGETS.into_iter().find(|other| other.name == target).expect("a target of this name");
    let kept = inputs(target);
    for (path, input) in &kept {
        let passed = panic::catch_unwind(|| body(input));
        assert!(passed.is_ok(), "{target} fails on {}", path.display());
    }
    tally();

    let seconds: u64 =
        env::var("KVCACHE_FUZZ_SECONDS").map_or(0, |seconds| seconds.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut random = Unstructured::seed(1);
    let mut runs = 0;
    while runs < seconds * per_second && Instant::now() < end {
        let mut input = kept[random.below(kept.len())].1.clone();
        form.vary(&mut input, &mut random);
        if panic::catch_unwind(|| body(&input)).is_err() {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{target}.input"));
            fs::write(&path, &input).expect("a written input");
            panic!("{target} fails on a new input, which is now {}", path.display());
        }
        runs += 1;
    }
    let Tally { all, accepted } = tally();
    println!("{target}: {} kept inputs, {runs} new ones; {accepted} of {all} new calls accepted", kept.len());
}

/// The kept inputs of a target, by name.
fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(paths.len() > 9, "{target} has only {} kept inputs", paths.len());
    paths.into_iter().map(|path| (path.clone(), fs::read(path).expect("an input"))).collect()
}

macro_rules! tests {
    ($($target:ident),*) => {
        $(
            #[test]
            fn $target() {
                run(stringify!($target));
            }
        )*

        #[test]
        fn every_target_has_a_test() {
            assert_eq!(TARGETS.map(|target| target.name), [$(stringify!($target)),*]);
        }
    };
}

tests!(validation, attention, dlpack, session_reader, manager_script);
