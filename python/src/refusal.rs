//! Refusals as Python's exceptions: `KvCacheError` of an operator with its `kind`; of a manager `ManagerError`, or
//! `CapacityError` where there is no room, with `kind` and `details`.

use kvcache_manager::{Error, SessionError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

/// The class of the exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Operator,
    Manager,
    Capacity,
}

/// A refusal on its way to Python.
#[derive(Debug)]
pub struct Refusal {
    class: Class,
    kind: &'static str,
    message: String,
    /// A dictionary, of a manager's refusal.
    details: Option<Py<PyAny>>,
}

impl Refusal {
    /// A refusal of an operator by this binding, for what the library cannot see.
    pub fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Self { class: Class::Operator, kind, message: message.into(), details: None }
    }

    /// A refusal of a manager by this binding.
    pub fn of_manager(kind: &'static str, message: impl Into<String>, details: PyResult<Py<PyAny>>) -> Self {
        Self { class: Class::Manager, kind, message: message.into(), details: details.ok() }
    }

    /// Adds to the sentence, if the refusal is of this kind.
    pub fn because(mut self, kind: &str, why: &str) -> Self {
        if self.kind == kind {
            self.message.push_str(why);
        }
        self
    }

    /// A step that has ended.
    pub fn step_closed() -> Self {
        refusal!("step_closed", "the step is no longer open: it was committed or rolled back")
    }
}

/// A refusal of a manager by this binding: its kind, its message and its details by name.
macro_rules! refusal {
    ($kind:expr, $message:expr $(, $name:ident = $value:expr)* $(,)?) => {
        $crate::refusal::Refusal::of_manager(
            $kind,
            $message,
            ::pyo3::Python::attach(|_py| {
                let details = ::pyo3::types::PyDict::new(_py);
                $(::pyo3::types::PyDictMethods::set_item(&details, stringify!($name), $value)?;)*
                Ok(details.into_any().unbind())
            }),
        )
    };
}
pub(crate) use refusal;

/// A shape in `details`: a tuple.
#[derive(Debug)]
pub struct Numbers<'a>(pub &'a [usize]);

impl<'py> IntoPyObject<'py> for Numbers<'_> {
    type Target = PyTuple;
    type Output = Bound<'py, PyTuple>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        PyTuple::new(py, self.0)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let no_room = |error: &Error| match error {
            Error::OutOfPages { .. } | Error::NoSlot { .. } => true,
            Error::Session(session) => matches!(session, SessionError::NoRoom { .. }),
            _ => false,
        };
        let class = if no_room(&error) { Class::Capacity } else { Class::Manager };
        let details = Python::attach(|py| pythonize::pythonize(py, &error).map(Bound::unbind)).ok();
        Self { class, kind: error.kind(), message: error.to_string(), details }
    }
}

impl From<kvcache_op::Error> for Refusal {
    fn from(error: kvcache_op::Error) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl Refusal {
    fn raise(self, py: Python<'_>) -> PyResult<PyErr> {
        static CLASSES: [PyOnceLock<Py<PyType>>; 3] = [const { PyOnceLock::new() }; 3];
        let name = match self.class {
            Class::Operator => "KvCacheError",
            Class::Manager => "ManagerError",
            Class::Capacity => "CapacityError",
        };
        let class = CLASSES[self.class as usize].import(py, "kvcache_ops._errors", name)?;
        if self.class == Class::Operator {
            return Ok(PyErr::from_value(class.call1((self.message, self.kind))?));
        }
        // None is no details.
        Ok(PyErr::from_value(class.call1((self.message, self.kind, self.details))?))
    }
}

impl From<Refusal> for PyErr {
    fn from(refusal: Refusal) -> Self {
        Python::attach(|py| refusal.raise(py).unwrap_or_else(|error| error))
    }
}
