//! A suite on the callable, and the cases of a suite for Python.

use std::path::{Path, PathBuf};

use kvcache_conformance::diagnosis::{Diagnosable, Recorder};
use kvcache_conformance::oracle::{ATTENTION_KINDS, KINDS};
use kvcache_conformance::{
    Expected, NanRule, Profile, ReadError, Report, Runner, Suite, attention, random, static_batching,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::call::{Caller, named, sent};
use super::implementation::Callable;
use crate::operator::Refused;

/// The forms of a report: JSON, text, the table by rule as text, JUnit.
type Forms = (String, String, String, String);

/// The cases of a suite.
enum Cases {
    Dynamic(Vec<kvcache_conformance::Case>),
    Static(Vec<static_batching::Case>),
    Attention(Vec<attention::Case>),
}

/// Runs the cases of suites, those in `folder` or in this library, whose names contain `filter`; there is one at least.
/// With `messages`, those of refusals must mention what the cases say; with the text of a `profile`, what is outside of
/// it must be refused. With a number and a seed in `on_demand`, so many cases more are made.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are those of the function that Python's users call")]
pub fn run_suites(
    py: Python<'_>,
    function: Py<PyAny>,
    name: String,
    suites: Vec<String>,
    profile: Option<&str>,
    folder: Option<PathBuf>,
    filter: &str,
    messages: bool,
    on_demand: (usize, u64),
) -> PyResult<Forms> {
    let profile = profile.map(Profile::parse).transpose();
    let profile = profile.map_err(|error| Refused::new("profile", format!("the profile cannot be read: {error}")))?;
    if suites == ["attention"] && on_demand.0 > 0 {
        let message = "no cases of the attention are made on demand, expected random to be 0";
        return Err(Refused::new("no_random", message.to_owned()).into());
    }
    let caller = Caller::new(function);
    let runner = Runner { profile: profile.as_ref(), ..Runner::default() };
    // The callable takes the GIL for each call. Else, other threads run.
    let report = py.detach(|| {
        let mut whole = Report { implementation: name, ..Report::default() };
        for suite in &suites {
            let report = match Cases::read(suite, folder.as_deref(), filter, on_demand)? {
                Cases::Dynamic(cases) => report(&caller, &runner, cases, messages),
                Cases::Static(cases) => report(&caller, &runner, cases, messages),
                Cases::Attention(cases) => report(&caller, &runner, cases, messages),
            };
            whole.profile.clone_from(&report.profile);
            whole.append(report);
        }
        match whole.entries.is_empty() {
            false => Ok(whole),
            true => Err(Refused::new("no_case", format!("no case has a name that contains {filter:?}"))),
        }
    });
    if let Some(end) = caller.into_end() {
        return Err(end);
    }
    let report = report.map_err(|refused: Refused| refused)?;
    Ok((report.json(), report.to_string(), report.rule_table(), report.junit()))
}

/// The same cases as dictionaries, each with its calls and what they must do.
#[pyfunction]
pub fn conformance_cases<'py>(
    py: Python<'py>,
    suite: &str,
    folder: Option<PathBuf>,
    filter: &str,
    on_demand: (usize, u64),
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    match py.detach(|| Cases::read(suite, folder.as_deref(), filter, on_demand))? {
        Cases::Dynamic(cases) => cases.iter().map(|case| dictionary(py, case)).collect(),
        Cases::Static(cases) => cases.iter().map(|case| dictionary(py, case)).collect(),
        Cases::Attention(cases) => cases.iter().map(|case| dictionary(py, case)).collect(),
    }
}

/// The kinds of the operators' errors.
#[pyfunction]
pub fn error_kinds() -> Vec<&'static str> {
    [&KINDS[..], &ATTENTION_KINDS[..]].concat()
}

impl Cases {
    /// Those of a suite whose names contain `filter`, of a folder or of this library, and so many made of a seed.
    fn read(suite: &str, folder: Option<&Path>, filter: &str, (count, seed): (usize, u64)) -> Result<Self, Refused> {
        Ok(match suite {
            "attention" => {
                let cases = folder.map_or_else(attention::cases, attention::read_cases);
                Self::Attention(chosen(cases, Vec::new(), filter)?)
            }
            "static" => {
                let cases = folder.map_or_else(static_batching::cases, static_batching::read_cases);
                Self::Static(chosen(cases, random::static_cases(count, seed), filter)?)
            }
            _ => {
                let cases = folder.map_or_else(kvcache_conformance::cases, kvcache_conformance::read_cases);
                Self::Dynamic(chosen(cases, random::cases(count, seed), filter)?)
            }
        })
    }
}

/// The cases, and others made on demand, whose names contain `filter`.
fn chosen<C: Diagnosable>(
    cases: Result<Vec<C>, ReadError>,
    on_demand: Vec<C>,
    filter: &str,
) -> Result<Vec<C>, Refused> {
    let mut cases = cases.map_err(|error| Refused::new("cases", error.to_string()))?;
    cases.extend(on_demand);
    cases.retain(|case| case.name().contains(filter));
    Ok(cases)
}

/// The report on the callable, with the known mistakes that its failures come from, unless something has ended the run.
fn report<C: Diagnosable>(caller: &Caller, runner: &Runner<'_>, mut cases: Vec<C>, messages: bool) -> Report {
    if !messages {
        cases.iter_mut().for_each(C::forget_messages);
    }
    let callable = Callable::new(caller);
    let recorder = Recorder::new(&callable);
    let mut report = runner.run(&recorder, &cases);
    if !caller.has_ended() {
        recorder.diagnose(&mut report, &cases);
    }
    report
}

/// A case for Python.
fn dictionary<'py, C: Suite>(py: Python<'py>, case: &C) -> PyResult<Bound<'py, PyDict>> {
    let dictionary = PyDict::new(py);
    dictionary.set_item("name", case.name())?;
    dictionary.set_item("about", case.about())?;
    dictionary.set_item("op_type", case.page().op_type())?;
    dictionary.set_item("attributes", case.attributes().into_iter().collect::<std::collections::BTreeMap<_, _>>())?;
    dictionary.set_item("any_nan", case.nan() == NanRule::Any)?;
    let [cache, scale] = case.state().map(|tensor| tensor.map(|tensor| sent(py, tensor)));
    dictionary.set_item("cache", cache)?;
    dictionary.set_item("scale", scale)?;
    let call = |(inputs, expected): (Vec<_>, &Expected)| {
        let (after, error) = match expected {
            Expected::Success(after) => (Some(named(py, &after.named(C::OUTPUTS))?), None),
            Expected::Refusal { kind, mentions } => (None, Some((kind.clone(), mentions.clone()))),
        };
        Ok((named(py, &inputs)?, after, error))
    };
    let calls = case.calls().into_iter().map(call).collect::<PyResult<Vec<_>>>()?;
    dictionary.set_item("calls", calls)?;
    Ok(dictionary)
}
