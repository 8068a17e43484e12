//! The conformance suites on a function of Python, which runs a case: `kvcache_ops.conformance` makes it of a callable,
//! a library or a program. Everything is compared here.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use kvcache_conformance::{
    ATTENTION_KINDS, CallResult, Case, Expected, Implementation, KINDS, Only, Outcome, Report, Runner, Suite, Tensor,
    cases, files, random, read_cases, read_results,
};
use kvcache_op::ElementType;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};
use pythonize::pythonize;

use crate::refusal::Refusal;

/// The forms of a report: JSON, text, the table by rule as text, JUnit.
type Forms = (String, String, String, String);

/// A tensor on its way to or from Python: the name of its type, its shape, its bytes.
#[derive(FromPyObject, IntoPyObject)]
struct Sent<'py>(String, Vec<usize>, Bound<'py, PyBytes>);

/// What became of a call: `done`, `refused`, `unsupported` or `failed`; the kind of error; a text; outputs, cache,
/// scale.
#[derive(FromPyObject, IntoPyObject)]
struct Reply<'py>(String, Option<String>, String, Vec<Sent<'py>>, Option<Sent<'py>>, Option<Sent<'py>>);

/// A call for Python: its inputs, the tensors after it, and the kind and mentions of its error.
type SentCall<'py> = (Bound<'py, PyDict>, Option<Bound<'py, PyDict>>, Option<(String, Vec<String>)>);

/// A case for Python.
#[pyclass(frozen, module = "kvcache_ops._native")]
pub struct ConformanceCase(Case);

#[pymethods]
impl ConformanceCase {
    #[getter]
    fn suite(&self) -> &'static str {
        self.0.operator.suite().name()
    }

    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    #[getter]
    fn about(&self) -> &str {
        &self.0.about
    }

    #[getter]
    fn rules(&self) -> Vec<String> {
        self.0.rules.clone()
    }

    #[getter]
    fn op_type(&self) -> &'static str {
        self.0.operator.op_type()
    }

    #[getter]
    fn attributes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let attributes = self.0.attributes.iter().into_py_dict(py)?;
        self.0.floats.iter().try_for_each(|(name, value)| attributes.set_item(name, value))?;
        Ok(attributes)
    }

    /// The names of the outputs that calls should give.
    #[getter]
    fn outputs(&self) -> Vec<&'static str> {
        self.0.outputs.to_vec()
    }

    #[getter]
    fn any_nan(&self) -> bool {
        self.0.any_nan
    }

    #[getter]
    fn cache<'py>(&self, py: Python<'py>) -> Option<Sent<'py>> {
        self.0.cache.as_ref().map(|tensor| sent(py, tensor))
    }

    #[getter]
    fn scale<'py>(&self, py: Python<'py>) -> Option<Sent<'py>> {
        self.0.scale.as_ref().map(|tensor| sent(py, tensor))
    }

    fn calls<'py>(&self, py: Python<'py>) -> PyResult<Vec<SentCall<'py>>> {
        let named = |tensors: &kvcache_conformance::Tensors| {
            let dictionary = PyDict::new(py);
            for (name, tensor) in tensors {
                dictionary.set_item(name, sent(py, tensor))?;
            }
            Ok::<_, PyErr>(dictionary)
        };
        let call = |step: &kvcache_conformance::Step| {
            let (after, error) = match &step.expected {
                Expected::Success(after) => (Some(named(after)?), None),
                Expected::Refusal { kind, mentions } => (None, Some((kind.clone(), mentions.clone()))),
            };
            Ok((named(&step.inputs)?, after, error))
        };
        self.0.steps.iter().map(call).collect()
    }

    /// What `case.yaml` and `tensors.safetensors` hold.
    fn files<'py>(&self, py: Python<'py>) -> PyResult<[Bound<'py, PyBytes>; 2]> {
        Ok(files(&self.0)?.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// The replies in the file that a program has written. Raises ValueError if it is no such file.
    fn read_results<'py>(&self, py: Python<'py>, file: &[u8]) -> PyResult<Vec<Reply<'py>>> {
        let reply = |result: CallResult| {
            let (what, kind, text, outputs) = match &result.outcome {
                Outcome::Done(outputs) => ("done", None, String::new(), outputs.as_slice()),
                Outcome::Refused { kind, message } => ("refused", kind.clone(), message.clone(), &[][..]),
                Outcome::Unsupported(reason) => ("unsupported", None, reason.clone(), &[][..]),
            };
            let outputs = outputs.iter().map(|tensor| sent(py, tensor)).collect();
            let [cache, scale] = [&result.cache, &result.scale].map(|tensor| tensor.as_ref().map(|t| sent(py, t)));
            Reply(what.to_owned(), kind, text, outputs, cache, scale)
        };
        let results = read_results(&self.0, file).map_err(PyValueError::new_err)?;
        Ok(results.into_iter().map(reply).collect())
    }
}

/// A function that runs a case: returns a reply for each call, or for those up to one that is unsupported or failed.
struct Function {
    function: Py<PyAny>,
    /// What has ended the run: not the implementation's failure, but KeyboardInterrupt or the like.
    ended_by: Mutex<Option<PyErr>>,
}

impl Implementation for Function {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let ended_by = || self.ended_by.lock().unwrap_or_else(PoisonError::into_inner);
        if ended_by().is_some() {
            return Err("the run has ended".to_owned());
        }
        let replies = Python::attach(|py| {
            py.check_signals()?;
            let case = Bound::new(py, ConformanceCase(case.clone()))?;
            let replies: Vec<Reply<'_>> = self.function.bind(py).call1((case,))?.extract()?;
            replies.into_iter().map(result).collect::<PyResult<Result<Vec<_>, _>>>()
        });
        replies.unwrap_or_else(|error| {
            let message = error.to_string();
            ended_by().get_or_insert(error);
            Err(message)
        })
    }
}

/// The result that a reply says, or why there is none.
fn result(reply: Reply<'_>) -> PyResult<Result<CallResult, String>> {
    let Reply(what, kind, text, outputs, cache, scale) = reply;
    let outcome = match what.as_str() {
        "done" => Outcome::Done(outputs.into_iter().map(received).collect::<PyResult<_>>()?),
        "refused" => Outcome::Refused { kind, message: text },
        "unsupported" => Outcome::Unsupported(text),
        _ => return Ok(Err(text)),
    };
    let received = |tensor: Option<Sent<'_>>| tensor.map(received).transpose();
    Ok(Ok(CallResult { outcome, cache: received(cache)?, scale: received(scale)? }))
}

fn sent<'py>(py: Python<'py>, tensor: &Tensor) -> Sent<'py> {
    Sent(tensor.element().name().to_owned(), tensor.shape().to_vec(), PyBytes::new(py, tensor.bytes()))
}

fn received(Sent(name, shape, bytes): Sent<'_>) -> PyResult<Tensor> {
    let tensor = ElementType::from_name(&name).and_then(|element| Tensor::new(element, shape, bytes.as_bytes()));
    tensor.ok_or_else(|| PyException::new_err(format!("{name} is no type of a tensor of so many bytes")))
}

/// Runs the cases of suites, those in `folder` or in this library, whose names contain `filter`; there is one at least.
/// With `messages`, refusals must mention what the cases say; cases outside of `only` are not run. With a
/// number and a seed in `on_demand`, that many cases more are made. `jobs` cases are run at once.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the function that Python's users call has them")]
pub fn run_suites(
    py: Python<'_>,
    function: Py<PyAny>,
    name: String,
    suites: Vec<String>,
    only: Vec<(String, Vec<String>)>,
    folder: Option<PathBuf>,
    filter: &str,
    messages: bool,
    on_demand: (usize, u64),
    jobs: NonZeroUsize,
) -> PyResult<Forms> {
    let mut runner = Runner { only: Only::default(), jobs };
    for (name, values) in only {
        runner.only.add(&name, &values).map_err(|error| Refusal::new("only", error.to_string()))?;
    }
    if suites == [Suite::Attention.name()] && on_demand.0 > 0 {
        let message = "no cases of the attention are made on demand, expected random to be 0";
        return Err(Refusal::new("no_random", message.to_owned()).into());
    }
    let function = Function { function, ended_by: Mutex::new(None) };
    // The function takes the GIL for each case. Else, other threads run.
    let report = py.detach(|| {
        let mut all = Vec::new();
        for suite in &suites {
            all.extend(chosen(suite, folder.as_deref(), filter, on_demand)?);
        }
        if all.is_empty() {
            return Err(Refusal::new("no_case", format!("no case has a name that contains {filter:?}")));
        }
        if !messages {
            all.iter_mut().for_each(Case::forget_messages);
        }
        Ok(Report { implementation: name, ..runner.run(&function, &all) })
    });
    if let Some(end) = function.ended_by.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(end);
    }
    let report = report?;
    Ok((report.json(), report.to_string(), report.rule_table(), report.junit()))
}

/// The cases of a suite for Python.
#[pyfunction]
pub fn conformance_cases(
    py: Python<'_>,
    suite: &str,
    folder: Option<PathBuf>,
    filter: &str,
    on_demand: (usize, u64),
) -> PyResult<Vec<ConformanceCase>> {
    let cases = py.detach(|| chosen(suite, folder.as_deref(), filter, on_demand))?;
    Ok(cases.into_iter().map(ConformanceCase).collect())
}

/// The cases of a suite whose names contain `filter`: those of a folder or of this library, and that many of a seed.
/// The folder is the suite's own, or has a folder for each suite, as `golden` has.
fn chosen(name: &str, folder: Option<&Path>, filter: &str, (count, seed): (usize, u64)) -> Result<Vec<Case>, Refusal> {
    let suite = Suite::ALL.into_iter().find(|suite| suite.name() == name);
    let suite = suite.ok_or_else(|| Refusal::new("suite_unknown", format!("there is no suite {name:?}")))?;
    let of_suite = |folder: &Path| folder.join(suite.folder());
    let read = match folder {
        None => cases(suite),
        Some(folder) if of_suite(folder).is_dir() => read_cases(&of_suite(folder)),
        Some(folder) => read_cases(folder),
    };
    let mut cases = read.map_err(|error| Refusal::new("cases", error.to_string()))?;
    if let Some(case) = cases.iter().find(|case| case.operator.suite() != suite) {
        let other = case.operator.suite().name();
        return Err(Refusal::new("cases", format!("{} is a case of the suite {other}, expected {name}", case.name)));
    }
    cases.extend(random::cases(suite, count, seed));
    cases.retain(|case| case.name.contains(filter));
    Ok(cases)
}

/// The operators' schemas, each a dictionary, without references to one another.
#[pyfunction]
pub fn schemas(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyAny>>> {
    let schema = |schema| Ok(pythonize(py, schema)?);
    kvcache_conformance::all_schemas().iter().map(schema).collect()
}

/// The kinds of the operators' errors.
#[pyfunction]
pub fn error_kinds() -> Vec<&'static str> {
    [&KINDS[..], &ATTENTION_KINDS[..]].concat()
}
