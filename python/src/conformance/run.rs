//! A suite on the callable.

use std::path::PathBuf;

use kvcache_conformance::diagnosis::Recorder;
use kvcache_conformance::oracle::Inputs;
use kvcache_conformance::{
    CallResult, Case, Expected, Implementation, Profile, ReadError, Report, Runner, StepInputs, Suite, attention,
    random, static_batching,
};
use pyo3::prelude::*;

use super::call::Caller;
use super::implementation::Callable;
use crate::operator::Refused;

/// The forms of a report: JSON, text, the table by rule as text, JUnit.
type Forms = (String, String, String, String);

/// Runs the cases of a suite, those in `folder` or in this library, whose names contain `filter`. With `messages`, those
/// of refusals must mention what the cases say; with the text of a `profile`, what is outside of it must be refused. With
/// a number and a seed in `on_demand`, so many cases more are made.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are those of the function that Python's users call")]
pub fn run_suite(
    py: Python<'_>,
    function: Py<PyAny>,
    name: String,
    suite: &str,
    profile: Option<&str>,
    folder: Option<PathBuf>,
    filter: &str,
    messages: bool,
    on_demand: (usize, u64),
) -> PyResult<Forms> {
    let profile = profile.map(Profile::parse).transpose();
    let profile = profile.map_err(|error| Refused::new("profile", format!("the profile cannot be read: {error}")))?;
    let (count, seed) = on_demand;
    if suite == "attention" && count > 0 {
        let message = "no cases of the attention are made on demand, expected random to be 0";
        return Err(Refused::new("no_random", message.to_owned()).into());
    }
    let caller = Caller::new(function);
    let runner = Runner { profile: profile.as_ref(), ..Runner::default() };
    // The callable takes the GIL for each call. Else, other threads run.
    let report = py.detach(|| match suite {
        "static" => {
            let cases = folder.map_or_else(static_batching::cases, |folder| static_batching::read_cases(&folder));
            let mut cases = chosen(cases, random::static_cases(count, seed), |case| &case.name, filter)?;
            let steps = cases.iter_mut().flat_map(|case| &mut case.steps);
            judge_messages(messages, steps.map(|step| &mut step.expected));
            Ok(diagnosed::<_, static_batching::StepInputs>(&runner, &caller, &cases))
        }
        "attention" => {
            let cases = folder.map_or_else(attention::cases, |folder| attention::read_cases(&folder));
            let mut cases = chosen(cases, Vec::new(), |case| &case.name, filter)?;
            let steps = cases.iter_mut().flat_map(|case| &mut case.steps);
            judge_messages(messages, steps.map(|step| &mut step.expected));
            let callable = Callable::new(&caller);
            let recorder = Recorder::new(&callable);
            let mut report = runner.run_attention(&recorder, &cases);
            if !caller.has_ended() {
                recorder.diagnose(&mut report, &cases);
            }
            Ok(report)
        }
        _ => {
            let cases =
                folder.map_or_else(kvcache_conformance::cases, |folder| kvcache_conformance::read_cases(&folder));
            let mut cases = chosen(cases, random::cases(count, seed), |case| &case.name, filter)?;
            let steps = cases.iter_mut().flat_map(|case| &mut case.steps);
            judge_messages(messages, steps.map(|step| &mut step.expected));
            Ok(diagnosed::<_, StepInputs>(&runner, &caller, &cases))
        }
    });
    if let Some(end) = caller.into_end() {
        return Err(end);
    }
    let mut report: Report = report.map_err(|refused: Refused| refused)?;
    report.implementation = name;
    Ok((report.json(), report.to_string(), report.rule_table(), report.junit()))
}

/// The report on the callable, with the known mistakes that its failures come from, unless something has ended the run.
fn diagnosed<A, I: Inputs<A>>(runner: &Runner<'_>, caller: &Caller, cases: &[Case<A, I>]) -> Report
where
    Case<A, I>: Suite<Result = CallResult>,
    for<'a> Callable<'a, CallResult>: Implementation<A, I>,
{
    let callable = Callable::new(caller);
    let recorder = Recorder::new(&callable);
    let mut report = runner.run(&recorder, cases);
    if !caller.has_ended() {
        recorder.diagnose(&mut report, cases);
    }
    report
}

/// The cases, and others made on demand, whose names contain `filter`; there is one at least.
fn chosen<C>(
    cases: Result<Vec<C>, ReadError>,
    on_demand: Vec<C>,
    name: impl Fn(&C) -> &String,
    filter: &str,
) -> Result<Vec<C>, Refused> {
    let mut cases = cases.map_err(|error| Refused::new("cases", error.to_string()))?;
    cases.extend(on_demand);
    cases.retain(|case| name(case).contains(filter));
    match cases.is_empty() {
        false => Ok(cases),
        true => Err(Refused::new("no_case", format!("no case has a name that contains {filter:?}"))),
    }
}

/// Leaves what messages must mention, or else takes it away.
fn judge_messages<'a, A: 'a>(messages: bool, expected: impl Iterator<Item = &'a mut Expected<A>>) {
    if !messages {
        expected.for_each(Expected::forget_message);
    }
}
