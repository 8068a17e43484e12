//! One call of the callable. Tensors go to Python, and come back, as (type, shape, bytes).

use std::sync::{Mutex, PoisonError};

use kvcache_conformance::{CallResult, Outcome, Tensor};
use kvcache_op::ElementType;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// What runs the calls of every case: a function of `kvcache_ops.conformance` around the user's callable.
pub struct Caller {
    function: Py<PyAny>,
    /// What has ended the run: not the implementation's failure, but KeyboardInterrupt or the like.
    ended_by: Mutex<Option<PyErr>>,
}

/// A call to be made.
pub struct Given<'a> {
    pub op_type: &'static str,
    pub attributes: &'a [(&'static str, i64)],
    /// The names of those that it should give.
    pub outputs: &'static [&'static str],
    pub inputs: Vec<(&'static str, &'a Tensor)>,
    pub cache: Option<&'a Tensor>,
    pub scale: Option<&'a Tensor>,
    /// Whether the call should succeed: then a refusal is described as the failure that it is.
    pub succeeds: bool,
}

/// Why a case has no results.
#[derive(Clone)]
pub enum Stopped {
    /// The implementation does not do what the case needs.
    Unsupported(String),
    /// It could not be run.
    Failed(String),
}

/// A tensor on its way from Python.
#[derive(FromPyObject)]
struct Sent<'py>(String, Vec<usize>, Bound<'py, PyBytes>);

/// What the function gives; the first word says which of the fields are meant.
#[derive(FromPyObject)]
struct Reply<'py>(String, Option<String>, String, Vec<Sent<'py>>, Option<Sent<'py>>, Option<Sent<'py>>);

impl Caller {
    pub fn new(function: Py<PyAny>) -> Self {
        Self { function, ended_by: Mutex::new(None) }
    }

    /// What has ended the run, if something has.
    pub fn into_end(self) -> Option<PyErr> {
        self.ended_by.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something has ended the run.
    pub fn has_ended(&self) -> bool {
        self.ended_by.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Makes a call; none, once something has ended the run.
    pub fn call(&self, given: &Given<'_>) -> Result<CallResult, Stopped> {
        if self.has_ended() {
            return Err(Stopped::Failed("the run has ended".to_owned()));
        }
        Python::attach(|py| py.check_signals().and_then(|()| self.reply(py, given))).unwrap_or_else(|error| {
            let stopped = Stopped::Failed(error.to_string());
            self.ended_by.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            Err(stopped)
        })
    }

    fn reply(&self, py: Python<'_>, given: &Given<'_>) -> PyResult<Result<CallResult, Stopped>> {
        let inputs = named(py, &given.inputs)?;
        let attributes = PyDict::new(py);
        for (name, value) in given.attributes {
            attributes.set_item(name, value)?;
        }
        let state = |tensor: Option<&Tensor>| tensor.map(|tensor| sent(py, tensor));
        let (cache, scale) = (state(given.cache), state(given.scale));
        let arguments = (given.op_type, attributes, inputs, cache, scale, given.outputs, given.succeeds);
        let Reply(what, kind, text, outputs, cache, scale) = self.function.bind(py).call1(arguments)?.extract()?;
        let outcome = match what.as_str() {
            "done" => Outcome::Done(outputs.into_iter().map(received).collect::<PyResult<_>>()?),
            "refused" => Outcome::Refused { kind, message: text },
            "unsupported" => return Ok(Err(Stopped::Unsupported(text))),
            _ => return Ok(Err(Stopped::Failed(text))),
        };
        let received = |tensor: Option<Sent<'_>>| tensor.map(received).transpose();
        Ok(Ok(CallResult { outcome, cache: received(cache)?, scale: received(scale)? }))
    }
}

/// Tensors for Python, by their names.
pub fn named<'py>(py: Python<'py>, tensors: &[(&'static str, &Tensor)]) -> PyResult<Bound<'py, PyDict>> {
    let dictionary = PyDict::new(py);
    for (name, tensor) in tensors {
        dictionary.set_item(name, sent(py, tensor))?;
    }
    Ok(dictionary)
}

/// A tensor for Python.
pub fn sent<'py>(py: Python<'py>, tensor: &Tensor) -> (&'static str, Vec<usize>, Bound<'py, PyBytes>) {
    (tensor.element().name(), tensor.shape().to_vec(), PyBytes::new(py, tensor.bytes()))
}

/// A tensor of Python.
fn received(Sent(name, shape, bytes): Sent<'_>) -> PyResult<Tensor> {
    let tensor = ElementType::from_name(&name).and_then(|element| Tensor::new(element, shape, bytes.as_bytes()));
    tensor.ok_or_else(|| PyException::new_err(format!("{name} is no type of a tensor of so many bytes")))
}
