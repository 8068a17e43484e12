//! A program as an implementation of every suite.

use super::command::Program;
use crate::implementation::Implementation;
use crate::result::CallResult;
use crate::suite::Suite;

impl<C: Suite> Implementation<C> for Program {
    fn run(&self, case: &C) -> Result<Vec<CallResult>, String> {
        let results = self.results(case.folder())?;
        let [cache, scale] = case.state();
        let result = |i: usize| {
            Ok(CallResult {
                outcome: results.outcome(i, C::OUTPUTS)?,
                cache: results.optional(i, "cache", cache)?,
                scale: results.optional(i, "scale", scale)?,
            })
        };
        (0..case.calls().len()).map(result).collect()
    }
}
