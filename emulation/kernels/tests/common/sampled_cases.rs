//! The golden cases that the tests take under sanitizers.

#[path = "sampled.rs"]
mod sampled;

use std::collections::BTreeMap;

use kvcache_golden::Suite;
use sampled::under_sanitizers;

/// There, those of the first layout, which have all modes, prompts in chunks, and some more of each combination of types:
/// together they launch every kernel. Elsewhere, or if all shall run, every one.
pub fn sampled_cases<C: Suite>(mut cases: Vec<C>) -> Vec<C> {
    let sample = under_sanitizers(6);
    let mut seen = BTreeMap::<String, usize>::new();
    cases.retain(|case| {
        let place = seen.entry(format!("{:?}", case.features().types)).or_default();
        *place += 1;
        place.is_multiple_of(sample) || ["layout0", "chunked"].iter().any(|part| case.name().contains(part))
    });
    cases
}
