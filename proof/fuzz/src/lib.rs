//! Fuzz targets. Each is a function of any bytes, which it takes for choices of a call, of a script or of a file's
//! contents, and which panics or lets a sanitizer end the process if a promise is broken. `src/main.rs` is the
//! program of libFuzzer, and `corpus/` has kept inputs that a test runs.

#![expect(missing_docs, reason = "only tests read it: what a name says is not said again")]

mod dlpack;
mod quantized_matmul;
mod session_reader;
mod validation;

use kvcache_conformance::random::Unstructured;
use kvcache_testing::manager::cache::Cache;
use kvcache_testing::manager::run::Run;
use kvcache_testing::manager::script::Operation;

/// A target's name, which its kept inputs' folder has, too; about how many inputs a second of CPU time takes under
/// AddressSanitizer; and its function.
pub type Target = (&'static str, u64, fn(&[u8]));

pub const TARGETS: [Target; 5] = [
    ("validation", 150, validation::run),
    ("dlpack", 800, dlpack::run),
    ("quantized_matmul", 300, quantized_matmul::run),
    ("session_reader", 500, session_reader::run),
    ("manager_script", 60, manager_script),
];

/// The target of a name.
pub fn target(name: &str) -> Target {
    TARGETS.into_iter().find(|(other, ..)| *other == name).unwrap_or_else(|| panic!("no target is {name}"))
}

/// Scripts of the manager's operations in every mode, run by [the model's runner](kvcache_testing::manager): after each
/// operation invariants hold, and every sequence has the rows that the model says, in the cache too; what is refused
/// changes nothing, and what is saved can be loaded.
fn manager_script(bytes: &[u8]) {
    let unstructured = &mut Unstructured::bytes(bytes);
    let of_prefixes = unstructured.one_in(4);
    let cache = if of_prefixes { Cache::draw_of_prefixes(unstructured) } else { Cache::draw(unstructured) };
    let mut run = Run::new(&cache);
    // The more there are, the longer each takes.
    for _ in 0..60 {
        if unstructured.is_empty() {
            return;
        }
        let draw = if of_prefixes { Operation::draw_of_prefixes } else { Operation::draw };
        run.apply(&draw(unstructured));
        run.check();
    }
}
