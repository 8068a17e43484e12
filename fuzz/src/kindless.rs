//! Implementations without kinds of errors.

use kvcache_conformance::{CallResult, Implementation, Outcome, Suite};

/// An implementation that says what it refuses, but not why: a call that breaks several rules may be refused for any.
pub struct Kindless<T>(pub T);

impl<C: Suite, T: Implementation<C>> Implementation<C> for Kindless<T> {
    fn run(&self, case: &C) -> Result<Vec<CallResult>, String> {
        let mut results = self.0.run(case)?;
        for result in &mut results {
            if let Outcome::Refused { kind, .. } = &mut result.outcome {
                *kind = None;
            }
        }
        Ok(results)
    }
}
