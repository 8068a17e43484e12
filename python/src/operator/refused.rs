//! What Python gets for a refused call: `KvCacheError` with the library's sentence and its `kind`.

use kvcache_op::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// A refusal on its way to Python.
#[derive(Debug)]
pub struct Refused {
    kind: &'static str,
    message: String,
}

impl Refused {
    /// A refusal of this binding's own, for what the library cannot see.
    pub fn new(kind: &'static str, message: String) -> Self {
        Self { kind, message }
    }

    /// The same, with more of a sentence if it is of this kind.
    pub fn because(mut self, kind: &str, why: &str) -> Self {
        if self.kind == kind {
            self.message.push_str(why);
        }
        self
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { kind: error.kind(), message: error.to_string() }
    }
}

impl Refused {
    fn raise(self, py: Python<'_>) -> PyResult<PyErr> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let class = CLASS.import(py, "kvcache_ops._errors", "KvCacheError")?;
        Ok(PyErr::from_value(class.call1((self.message, self.kind))?))
    }
}

impl From<Refused> for PyErr {
    fn from(refused: Refused) -> Self {
        Python::attach(|py| refused.raise(py).unwrap_or_else(|error| error))
    }
}
