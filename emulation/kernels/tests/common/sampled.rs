//! How much the tests take under sanitizers, where all is ten times as long.

#[path = "../../../../golden/tests/common/sample.rs"]
mod sample;

/// Of so many, one is taken there, unless all shall run; elsewhere every one.
pub fn under_sanitizers(count: usize) -> usize {
    if cfg!(feature = "sanitize") { sample::every(count) } else { 1 }
}
