//! A program as an implementation of `KeyValueCache`.

use super::command::Program;
use crate::case::{Case, Outputs};
use crate::implementation::{CallResult, Implementation};

impl<A, I> Implementation<A, I> for Program {
    fn run(&self, case: &Case<A, I>) -> Result<Vec<CallResult>, String> {
        let results = self.results(&case.folder)?;
        let result = |i: usize| {
            Ok(CallResult {
                outcome: results.outcome(i, || {
                    Ok(Outputs { key: results.tensor(i, "key", None)?, value: results.tensor(i, "value", None)? })
                })?,
                cache: results.tensor(i, "cache", Some(&case.cache))?,
                scale: results.optional(i, "scale", case.scale.as_ref())?,
            })
        };
        (0..case.steps.len()).map(result).collect()
    }
}
