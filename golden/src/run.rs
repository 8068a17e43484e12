//! Runs cases on an implementation, and says what becomes of each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use crate::case::Case;
use crate::demand::Demand;
use crate::difference::Difference;
use crate::implementation::{CallResult, Implementation};
use crate::report::{Entry, Report, Verdict};
use crate::suite::Suite;

/// Runs the cases on an implementation.
pub fn run<A, I>(implementation: &dyn Implementation<A, I>, cases: &[Case<A, I>]) -> Report
where
    Case<A, I>: Suite<Result = CallResult>,
{
    report(cases, |case| implementation.cannot_run(case), |case| implementation.run(case))
}

/// What becomes of cases of any suite.
pub(crate) fn report<C: Suite>(
    cases: &[C],
    cannot_run: impl Fn(&C) -> Option<String>,
    run: impl Fn(&C) -> Result<Vec<C::Result>, String>,
) -> Report {
    let entry = |case: &C| {
        let start = Instant::now();
        let verdict = match cannot_run(case) {
            Some(reason) => Verdict::Unsupported(reason),
            None => verdict(case, || run(case)),
        };
        Entry {
            suite: C::NAME,
            page: case.page(),
            case: case.name().to_owned(),
            about: case.about().to_owned(),
            rules: case.rules().to_vec(),
            outside: None,
            time: start.elapsed(),
            verdict,
        }
    };
    Report { entries: cases.iter().map(entry).collect(), ..Report::default() }
}

/// What becomes of a case that is run.
fn verdict<C: Suite>(case: &C, run: impl FnOnce() -> Result<Vec<C::Result>, String>) -> Verdict {
    let failed = |difference, diagnosis| Verdict::Failed(Box::new(difference), diagnosis);
    let results = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(results)) => results,
        Ok(Err(reason)) => return failed(Difference::could_not_run(reason), None),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            return failed(Difference::could_not_run(format!("the implementation panicked: {text}")), None);
        }
    };
    match case.difference(&results, Demand::AsExpected) {
        None => Verdict::Passed,
        Some(difference) => failed(difference, case.diagnose(&results)),
    }
}
