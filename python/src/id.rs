//! How sequences are named in Python: the number of their generational key.

use kvcache_manager::SeqId;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use slotmap::{Key, KeyData};

use crate::arguments::not_of_type;
use crate::refusal::{Refusal, Result};

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
    type Error = Refusal;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> Result<Self> {
        // The usual ids first: CPython is quickest with these.
        let number = match value.extract::<i64>() {
            Ok(number) => i128::from(number),
            Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => match value.extract() {
                Ok(number) => number,
                Err(_) => return Err(unknown("of more than 128 bits", None)),
            },
            Err(error) => return Err(not_of_type(error, "a sequence's id", "an int", &value).into()),
        };
        // Of numbers that no key gave, some would be taken for a key.
        match u64::try_from(number).map(KeyData::from_ffi) {
            Ok(key) if i128::from(key.as_ffi()) == number => Ok(Self(key.into())),
            _ => Err(unknown(&number.to_string(), Some(number))),
        }
    }
}

fn unknown(number: &str, seq: Option<i128>) -> Refusal {
    Refusal::manager("unknown_seq", format!("no sequence has the id {number}")).with("seq", seq)
}
