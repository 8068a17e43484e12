//! Every target passes on its kept inputs and, for as many seconds as `KVCACHE_FUZZ_SECONDS` says, on others near them,
//! made without a fuzzer.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, panic};

use kvcache_fuzz::{Random, TARGETS};

/// Replays what is kept of a target, and goes on from there.
fn run(target: &str) {
    let (_, body) = TARGETS.into_iter().find(|(name, _)| *name == target).expect("a target of this name");
    let kept = inputs(target);
    for (path, input) in &kept {
        let passed = panic::catch_unwind(|| body(input));
        assert!(passed.is_ok(), "{target} fails on {}", path.display());
    }

    let seconds = env::var("KVCACHE_FUZZ_SECONDS").map_or(0, |seconds| seconds.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut random = Random::default();
    let mut runs = 0;
    while Instant::now() < end {
        let input = near(&kept, &mut random);
        if panic::catch_unwind(|| body(&input)).is_err() {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{target}.input"));
            fs::write(&path, &input).expect("a written input");
            panic!("{target} fails on a new input, which is now {}", path.display());
        }
        runs += 1;
    }
    println!("{target}: {} kept inputs, {runs} new ones", kept.len());
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

/// A kept input of which some bytes are others, or the beginning of one and the end of another.
fn near(kept: &[(PathBuf, Vec<u8>)], random: &mut Random) -> Vec<u8> {
    let mut any = || kept[random.below(kept.len())].1.clone();
    let (mut input, other) = (any(), any());
    match random.below(4) {
        0 => {
            input.truncate(random.below(input.len() + 1));
            input.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        1 => {
            let at = random.below(input.len() + 1);
            let more: Vec<u8> = (0..random.below(16)).map(|_| random.bits() as u8).collect();
            input.splice(at..at, more);
        }
        _ => {
            for _ in 0..1 + random.below(4) {
                let at = random.below(input.len());
                if let Some(byte) = input.get_mut(at) {
                    *byte = random.bits() as u8;
                }
            }
        }
    }
    input
}

/// A test for each target.
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
            assert_eq!(TARGETS.map(|(name, _)| name), [$(stringify!($target)),*]);
        }
    };
}

tests!(validation, operator, attention, dlpack, conformance_reader, session_reader, manager_script);
