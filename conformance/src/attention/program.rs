//! An implementation in any language.

use super::case::Case;
use super::implementation::{CallResult, Implementation};
use crate::program::Program;

impl Implementation for Program {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let results = self.results(&case.folder)?;
        let result = |i: usize| {
            Ok(CallResult {
                outcome: results.outcome(i, || results.tensor(i, "attn_output", None))?,
                cache: results.optional(i, "cache", case.cache.as_ref())?,
                scale: results.optional(i, "scale", case.scale.as_ref())?,
            })
        };
        (0..case.steps.len()).map(result).collect()
    }
}
