//! Refusals as Python's exceptions: `KvCacheError` of an operator with its `kind`; of a manager `ManagerError`, or
//! `CapacityError` where there is no room, with `kind` and `details`.

use kvcache_manager::{Error, SessionError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub type Result<T, E = Refusal> = std::result::Result<T, E>;

/// Why a call ends, on its way to Python.
#[derive(Debug)]
pub enum Refusal {
    /// A rule is broken. The class is one of `kvcache_ops._errors`; a manager's has details, a dictionary.
    Rule { class: &'static str, kind: &'static str, message: String, details: Option<Py<PyAny>> },
    /// Python raised an exception.
    Raised(PyErr),
}

impl Refusal {
    /// A refusal of an operator by this binding, for what the library cannot see.
    pub fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Self::Rule { class: "KvCacheError", kind, message: message.into(), details: None }
    }

    /// A refusal of a manager by this binding.
    pub fn manager(kind: &'static str, message: impl Into<String>) -> Self {
        Self::Rule { class: "ManagerError", kind, message: message.into(), details: None }
    }

    /// Adds a detail.
    pub fn with(mut self, name: &str, value: impl for<'py> IntoPyObject<'py>) -> Self {
        if let Self::Rule { details, .. } = &mut self {
            Python::attach(|py| {
                let details = details.get_or_insert_with(|| PyDict::new(py).into_any().unbind()).bind(py);
                // Without memory for it, the text says it.
                let _ = details.set_item(name, value);
            });
        }
        self
    }

    /// A step that has ended.
    pub fn step_closed() -> Self {
        Self::manager("step_closed", "the step is no longer open: it was committed or rolled back")
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let class = match error {
            Error::OutOfPages { .. } | Error::NoSlot { .. } | Error::Session(SessionError::NoRoom { .. }) => {
                "CapacityError"
            }
            _ => "ManagerError",
        };
        let details = Python::attach(|py| pythonize::pythonize(py, &error).map(Bound::unbind)).ok();
        Self::Rule { class, kind: error.kind(), message: error.to_string(), details }
    }
}

impl From<SessionError> for Refusal {
    fn from(error: SessionError) -> Self {
        Error::from(error).into()
    }
}

impl From<kvcache_op::Error> for Refusal {
    fn from(error: kvcache_op::Error) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl From<PyErr> for Refusal {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl From<Refusal> for PyErr {
    fn from(refusal: Refusal) -> Self {
        let (class, kind, message, details) = match refusal {
            Refusal::Rule { class, kind, message, details } => (class, kind, message, details),
            Refusal::Raised(error) => return error,
        };
        let raised = Python::attach(|py| {
            let class = py.import("kvcache_ops._errors")?.getattr(class)?;
            let error = match details {
                Some(details) => class.call1((message, kind, details)),
                None => class.call1((message, kind)),
            };
            error.map(PyErr::from_value)
        });
        raised.unwrap_or_else(|error| error)
    }
}
