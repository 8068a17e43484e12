//! Every target passes on its kept inputs and, for as many seconds as `KVCACHE_FUZZ_SECONDS` says, on others near them,
//! made without a fuzzer: the same ones on each machine, or the first of them where it is slow.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, panic};

use kvcache_conformance::oracle::KINDS;
use kvcache_conformance::random::Entropy;
use kvcache_fuzz::{Form, TARGETS, Tally, Target, tally};
use kvcache_op::ElementType;
use kvcache_op::schema::{TypeCombination, multi_head_cache_attention};

/// Replays what is kept of a target, and goes on from there.
fn run(target: &str) {
    let Target { form, per_second, run: body, .. } =
        TARGETS.into_iter().find(|other| other.name == target).expect("a target of this name");
    if env::var_os("KVCACHE_FUZZ_KEEP").is_some() && form == Form::Choices {
        keep(target, body);
    }
    let kept = inputs(target);
    for (path, input) in &kept {
        let passed = panic::catch_unwind(|| body(input));
        assert!(passed.is_ok(), "{target} fails on {}", path.display());
    }

    let reached = tally().kinds;
    let missing: Vec<_> = expected_kinds(target).into_iter().filter(|kind| !reached.contains(kind)).collect();
    assert!(missing.is_empty(), "no kept input of {target} reaches {missing:?}");

    let seconds: u64 =
        env::var("KVCACHE_FUZZ_SECONDS").map_or(0, |seconds| seconds.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut random = Entropy::seed(1);
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
    let Tally { all, accepted, .. } = tally();
    println!("{target}: {} kept inputs, {runs} new ones; {accepted} of {all} new calls accepted", kept.len());
}

/// Replaces what is kept of a target by random bytes that reach kinds which none before has reached: for when the same
/// bytes have come to choose other things.
fn keep(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::remove_dir_all(&folder).expect("a folder");
    fs::create_dir_all(&folder).expect("a folder");
    let (mut random, mut reached) = (Entropy::seed(0), BTreeSet::new());
    for i in 0..2000 {
        let input: Vec<u8> = (0..300).map(|_| random.next() as u8).collect();
        body(&input);
        let before = reached.len();
        reached.append(&mut tally().kinds);
        if reached.len() > before || i < 10 {
            fs::write(folder.join(format!("{i:04}")), &input).expect("a written input");
        }
    }
}

/// What the kept inputs of a target must reach: all types, layouts and modes, as [`Tally::kinds`] calls them.
fn expected_kinds(target: &str) -> Vec<String> {
    let types = |operator: &str, types: &[TypeCombination]| -> Vec<String> {
        let kind = |TypeCombination { quant_bit, t1, t2, t3 }: &TypeCombination| {
            format!("{operator} {quant_bit} {t1} {t2} {}", t3.map_or("none", ElementType::name))
        };
        types.iter().map(kind).collect()
    };
    let places = |operator: &str, end: usize| -> Vec<String> {
        (0..end).map(|place| format!("{operator} place {place}")).collect()
    };
    match target {
        "operator" => [
            types("KeyValueCache", &TypeCombination::LEGAL),
            types("StaticKeyValueCache", &TypeCombination::LEGAL),
            places("KeyValueCache", 8),
            places("StaticKeyValueCache", 2),
        ]
        .concat(),
        "attention" => {
            let combinations: Vec<_> = multi_head_cache_attention::combinations().collect();
            [types("MultiHeadCacheAttention", &combinations), places("MultiHeadCacheAttention", 8)].concat()
        }
        // Sizes that overflow are no case's.
        "validation" => {
            let kinds = KINDS.iter().filter(|kind| **kind != "size_overflow");
            kinds.map(|kind| format!("refused: {kind}")).chain(["success".to_owned()]).collect()
        }
        _ => Vec::new(),
    }
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
            assert_eq!(TARGETS.map(|target| target.name), [$(stringify!($target)),*]);
        }
    };
}

tests!(validation, operator, attention, dlpack, session_reader, manager_script);
