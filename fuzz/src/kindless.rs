//! Implementations without kinds of errors.

use kvcache_conformance::{CallResult, Case, Implementation, Outcome, attention};

/// An implementation that says what it refuses, but not why: a call that breaks several rules may be refused for any.
pub struct Kindless<T>(pub T);

fn without_kind<O>(outcome: &mut Outcome<O>) {
    if let Outcome::Refused { kind, .. } = outcome {
        *kind = None;
    }
}

impl<T: Implementation> Implementation for Kindless<T> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let mut results = self.0.run(case)?;
        results.iter_mut().for_each(|result| without_kind(&mut result.outcome));
        Ok(results)
    }
}

impl<T: attention::Implementation> attention::Implementation for Kindless<T> {
    fn run(&self, case: &attention::Case) -> Result<Vec<attention::CallResult>, String> {
        let mut results = self.0.run(case)?;
        results.iter_mut().for_each(|result| without_kind(&mut result.outcome));
        Ok(results)
    }
}
