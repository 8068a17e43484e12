//! A suite on the callable.

use std::path::PathBuf;

use kvcache_golden::diagnosis::Recorder;
use kvcache_golden::oracle::Inputs;
use kvcache_golden::{
    CallResult, Case, Expected, Implementation, ReadError, Report, StepInputs, Suite, attention, static_batching,
};
use pyo3::prelude::*;

use super::call::Caller;
use super::implementation::Callable;
use crate::operator::Refused;

/// The forms of a report: JSON, text, the table by rule as text.
type Forms = (String, String, String);

/// Runs the cases of a suite, those in `folder` or in this library, whose names contain `filter`. With `messages`, those
/// of refusals must mention what the cases say.
#[pyfunction]
pub fn run_suite(
    function: Py<PyAny>,
    name: String,
    suite: &str,
    folder: Option<PathBuf>,
    filter: &str,
    messages: bool,
) -> PyResult<Forms> {
    let caller = Caller::new(function);
    let mut report = match suite {
        "static" => {
            let cases = folder.map_or_else(static_batching::cases, |folder| static_batching::read_cases(&folder));
            let mut cases = chosen(cases, |case| case.name.contains(filter))?;
            let steps = cases.iter_mut().flat_map(|case| &mut case.steps);
            judge_messages(messages, steps.map(|step| &mut step.expected));
            diagnosed::<_, static_batching::StepInputs>(&Callable::new(&caller), &cases)
        }
        "attention" => {
            let cases = folder.map_or_else(attention::cases, |folder| attention::read_cases(&folder));
            let mut cases = chosen(cases, |case| case.name.contains(filter))?;
            let steps = cases.iter_mut().flat_map(|case| &mut case.steps);
            judge_messages(messages, steps.map(|step| &mut step.expected));
            attention::run(&Callable::new(&caller), &cases)
        }
        _ => {
            let cases = folder.map_or_else(kvcache_golden::cases, |folder| kvcache_golden::read_cases(&folder));
            let mut cases = chosen(cases, |case| case.name.contains(filter))?;
            let steps = cases.iter_mut().flat_map(|case| &mut case.steps);
            judge_messages(messages, steps.map(|step| &mut step.expected));
            diagnosed::<_, StepInputs>(&Callable::new(&caller), &cases)
        }
    };
    if let Some(end) = caller.into_end() {
        return Err(end);
    }
    report.implementation = name;
    Ok(forms(&report))
}

/// The report on an implementation, with the known mistakes that its failures come from.
fn diagnosed<A, I: Inputs<A>>(implementation: &dyn Implementation<A, I>, cases: &[Case<A, I>]) -> Report
where
    Case<A, I>: Suite<Result = CallResult>,
{
    let recorder = Recorder::new(implementation);
    let mut report = kvcache_golden::run(&recorder, cases);
    recorder.diagnose(&mut report, cases);
    report
}

/// The cases that were asked for, of which there is one at least.
fn chosen<C>(cases: Result<Vec<C>, ReadError>, is_chosen: impl Fn(&C) -> bool) -> PyResult<Vec<C>> {
    let mut cases = cases.map_err(|error| Refused::new("cases", error.to_string()))?;
    cases.retain(is_chosen);
    if cases.is_empty() {
        return Err(Refused::new("no_case", "no case has a name that contains the filter".to_owned()).into());
    }
    Ok(cases)
}

/// Leaves what messages must mention, or else takes it away.
fn judge_messages<'a, A: 'a>(messages: bool, expected: impl Iterator<Item = &'a mut Expected<A>>) {
    for expected in expected {
        if let (false, Expected::Refusal { mentions, .. }) = (messages, expected) {
            mentions.clear();
        }
    }
}

fn forms(report: &Report) -> Forms {
    (report.json(), report.to_string(), report.rule_table())
}
