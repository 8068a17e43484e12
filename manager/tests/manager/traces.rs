//! What scripts call is written to a file, which the tests of the Python binding replay.

use std::path::Path;

use kvcache_conformance::random::Entropy;
use kvcache_manager::Mode;
use kvcache_testing::manager::run::Run;
use kvcache_testing::manager::script::{Cache, Operation};
use serde_json::json;

/// Scripts, a line each: the arguments of the cache's specification, and the calls.
fn lines() -> String {
    let script = |seed| {
        let entropy = &mut Entropy::seed(seed);
        let is_meant = |cache: &Cache| match seed % 4 {
            0 => true,
            1 => cache.mode == Mode::Runs,
            2 => cache.mode == Mode::Cells,
            _ => cache.paged(),
        };
        let draw = if seed % 4 == 0 { Cache::draw_of_prefixes } else { Cache::draw };
        let cache = std::iter::repeat_with(|| draw(entropy)).find(is_meant).unwrap();
        let mut run = Run::new(&cache);
        run.trace = Some(Vec::new());
        run.create(0, 0);
        for _ in 0..30 {
            let operation = if seed % 4 == 0 { Operation::draw_of_prefixes(entropy) } else { Operation::draw(entropy) };
            // The binding's memory does not fail.
            if !operation.fails() {
                run.apply(&operation);
            }
        }
        json!({ "cache": cache.arguments(), "calls": run.trace }).to_string() + "\n"
    };
    (0..12).map(script).collect()
}

/// `KVCACHE_WRITE_TRACES=1` writes the file anew.
#[test]
fn the_file_of_the_python_tests_is_what_scripts_call() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python_tests/manager_traces.jsonl");
    let lines = lines();
    if std::env::var_os("KVCACHE_WRITE_TRACES").is_some() {
        std::fs::write(&path, &lines).unwrap();
    }
    assert!(std::fs::read_to_string(&path).unwrap() == lines, "{} is of other scripts", path.display());
}
