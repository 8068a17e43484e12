//! What Python gets for a refusal: `ManagerError`, or `CapacityError` where there is no room, with `kind` and `details`.

use kvcache_manager::{Detail, Error, SessionError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

/// A refusal on its way to Python.
#[derive(Debug)]
pub struct Refusal {
    capacity: bool,
    kind: &'static str,
    message: String,
    details: Vec<(&'static str, Detail)>,
}

impl Refusal {
    /// A refusal of this binding's own.
    pub fn new(kind: &'static str, message: String, details: Vec<(&'static str, Detail)>) -> Self {
        Self { capacity: false, kind, message, details }
    }

    /// A step that has ended.
    pub fn step_closed() -> Self {
        refusal!("step_closed", "the step is no longer open: it was committed or rolled back")
    }
}

/// A refusal of this binding's own: its kind, its message and its details by name.
macro_rules! refusal {
    ($kind:expr, $message:expr $(, $name:ident = $value:expr)* $(,)?) => {
        $crate::refusal::Refusal::new(
            $kind,
            $message.into(),
            vec![$((stringify!($name), ::kvcache_manager::Detail::from($value))),*],
        )
    };
}
pub(crate) use refusal;

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let no_room = |error: &Error| match error {
            Error::OutOfPages { .. } | Error::NoSlot { .. } => true,
            Error::Session(session) => matches!(session, SessionError::NoRoom { .. }),
            _ => false,
        };
        Self { capacity: no_room(&error), kind: error.kind(), message: error.to_string(), details: error.details() }
    }
}

static MANAGER_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static CAPACITY_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

impl Refusal {
    fn raise(self, py: Python<'_>) -> PyResult<PyErr> {
        let class = if self.capacity {
            CAPACITY_ERROR.import(py, "kvcache_ops._errors", "CapacityError")?
        } else {
            MANAGER_ERROR.import(py, "kvcache_ops._errors", "ManagerError")?
        };
        let details = PyDict::new(py);
        for (name, detail) in self.details {
            match detail {
                Detail::Int(number) => details.set_item(name, number)?,
                Detail::Float(number) => details.set_item(name, number)?,
                Detail::Text(text) => details.set_item(name, text)?,
                Detail::Numbers(numbers) => details.set_item(name, PyTuple::new(py, numbers)?)?,
                // `Detail` may get variants; `None` is one.
                _ => details.set_item(name, py.None())?,
            }
        }
        Ok(PyErr::from_value(class.call1((self.message, self.kind, details))?))
    }
}

impl From<Refusal> for PyErr {
    fn from(refusal: Refusal) -> Self {
        Python::attach(|py| refusal.raise(py).unwrap_or_else(|error| error))
    }
}
