//! How sequences are named in Python: the number of their generational key.

use kvcache_manager::{Detail, SeqId};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use slotmap::{Key, KeyData};

use crate::numbers::type_error;
use crate::refusal::Refusal;

/// A sequence's id.
#[derive(Debug, Clone, Copy)]
pub struct Id(pub SeqId);

impl Id {
    /// Its number in Python.
    pub fn number(self) -> u64 {
        self.0.data().as_ffi()
    }
}

impl FromPyObject<'_, '_> for Id {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match value.extract::<u64>() {
            // Of numbers that no key gave, some would be taken for a key.
            Ok(number) => match KeyData::from_ffi(number) {
                key if key.as_ffi() == number => Ok(Self(key.into())),
                _ => Err(unknown(&number.to_string(), Detail::Int(number.into()))),
            },
            Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => match value.extract::<i128>() {
                Ok(number) => Err(unknown(&number.to_string(), Detail::Int(number))),
                Err(_) => Err(unknown("of more than 128 bits", Detail::None)),
            },
            Err(_) => Err(type_error("a sequence's id", "an int", &value)),
        }
    }
}

fn unknown(number: &str, seq: Detail) -> PyErr {
    Refusal::new("unknown_seq", format!("no sequence has the id {number}"), vec![("seq", seq)]).into()
}
