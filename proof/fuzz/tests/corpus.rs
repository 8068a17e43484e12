//! Every target passes on its kept inputs and, for as many seconds as `KVCACHE_FUZZ_SECONDS` says, on others near them,
//! made without a fuzzer: the same ones on each machine, or the first of them where it is slow.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, panic};

use kvcache_conformance::random::Unstructured;
use kvcache_fuzz::target;

#[test]
fn validation() {
    run("validation");
}

#[test]
fn dlpack() {
    run("dlpack");
}

#[test]
fn quantized_matmul() {
    run("quantized_matmul");
}

#[test]
fn session_reader() {
    run("session_reader");
}

#[test]
fn manager_script() {
    run("manager_script");
}

/// Replays what is kept of a target, and goes on from there.
fn run(name: &str) {
    let (_, per_second, body) = target(name);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(paths.len() > 9, "{name} has only {} kept inputs", paths.len());
    let kept: Vec<_> = paths.iter().map(|path| fs::read(path).expect("an input")).collect();
    for (path, input) in paths.iter().zip(&kept) {
        assert!(panic::catch_unwind(|| body(input)).is_ok(), "{name} fails on {}", path.display());
    }

    let seconds = env::var("KVCACHE_FUZZ_SECONDS").map_or(0, |seconds| seconds.parse().expect("a number of seconds"));
    let (end, mut runs) = (Instant::now() + Duration::from_secs(seconds), 0);
    let random = &mut Unstructured::seed(1);
    while runs < seconds * per_second && Instant::now() < end {
        let input = near(&kept[random.below(kept.len())], random);
        if panic::catch_unwind(|| body(&input)).is_err() {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.input"));
            fs::write(&path, &input).expect("a written input");
            panic!("{name} fails on a new input, which is now {}", path.display());
        }
        runs += 1;
    }
    println!("{name}: {} kept inputs, {runs} new ones", kept.len());
}

/// Another input: other bytes in some places, or from some point on.
fn near(input: &[u8], random: &mut Unstructured) -> Vec<u8> {
    let (mut input, from) = (input.to_vec(), random.below(input.len() + 1));
    let more = |len: usize, random: &mut Unstructured| (0..len).map(|_| random.next() as u8).collect::<Vec<_>>();
    match random.below(4) {
        0 => drop(input.splice(from.., more(300, random))),
        1 => {
            let (removed, added) = (random.below(9).min(input.len() - from), random.below(9));
            input.splice(from..from + removed, more(added, random));
        }
        _ => {
            for _ in 0..random.within(1, 4) {
                let at = random.below(input.len());
                input.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.next() as u8);
            }
        }
    }
    input
}
