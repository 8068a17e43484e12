//! Arguments from Python: numbers in their range, from any object with `__index__`, and names out of several.

use std::ops::Range;

use kvcache_manager as core;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::refusal::{Refusal, Result};

/// An integer. Its range is checked by the call, which knows its name; none has more than 64 bits.
#[derive(Debug, Clone, Copy)]
pub struct Number(Option<i64>);

impl From<i64> for Number {
    fn from(number: i64) -> Self {
        Self(Some(number))
    }
}

impl FromPyObject<'_, '_> for Number {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match value.extract() {
            Ok(number) => Ok(Self(Some(number))),
            Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => Ok(Self(None)),
            Err(error) => Err(not_of_type(error, "a number", "an int", &value)),
        }
    }
}

impl Number {
    /// The number, if it is between these two, inclusive: else `ManagerError` of this kind.
    pub fn within(self, kind: &'static str, name: &'static str, min: i64, max: i64) -> Result<i64> {
        if let Some(got) = self.0.filter(|got| (min..=max).contains(got)) {
            return Ok(got);
        }
        let is = self.0.map_or_else(|| "has more than 64 bits".to_owned(), |got| format!("is {got}"));
        let refusal = Refusal::manager(kind, format!("{name} {is}, expected {min} to {max}"));
        Err(refusal.with("name", name).with("got", self.0).with("min", min).with("max", max))
    }

    /// A number of any size.
    pub fn any(self, name: &'static str) -> Result<i64> {
        self.within("range", name, i64::MIN, i64::MAX)
    }

    /// A number that counts something.
    pub fn count(self, name: &'static str) -> Result<usize> {
        // Not negative: 64 bits hold it.
        Ok(self.within("range", name, 0, i64::MAX)? as usize)
    }

    /// A number of a specification, which counts something.
    pub fn size(self, name: &'static str) -> Result<usize> {
        Ok(self.within("spec_range", name, 0, i64::MAX)? as usize)
    }
}

/// Arguments `p0` and `p1`, a range of positions.
pub fn positions(p0: Number, p1: Number) -> Result<Range<i64>> {
    Ok(p0.any("p0")?..p1.any("p1")?)
}

/// A name out of several: else `ManagerError` of kind `spec_name`.
pub fn choice<T: Copy>(name: &'static str, got: &str, choices: &[(&'static str, T)]) -> Result<T> {
    if let Some((_, choice)) = choices.iter().find(|(choice, _)| *choice == got) {
        return Ok(*choice);
    }
    let expected = choices.iter().map(|(choice, _)| *choice).collect::<Vec<_>>().join(", ");
    let refusal = Refusal::manager("spec_name", format!("{name} is {got:?}, expected one of {expected}"));
    Err(refusal.with("name", name).with("got", got).with("expected", expected))
}

/// Why an argument could not be converted: it is of another type, or its own conversion raised something else.
pub fn not_of_type(error: PyErr, name: &str, expected: &str, got: &Bound<'_, PyAny>) -> PyErr {
    if error.is_instance_of::<PyTypeError>(got.py()) { type_error(name, expected, got) } else { error }
}

/// An argument of another type.
pub fn type_error(name: &str, expected: &str, got: &Bound<'_, PyAny>) -> PyErr {
    match got.get_type().name() {
        Ok(class) => PyTypeError::new_err(format!("{name}: expected {expected}, got {class}")),
        Err(error) => error,
    }
}

/// Argument `shift_limit`: a number, None or "default".
#[derive(Debug, Clone, Copy, Default)]
pub struct ShiftLimit(pub core::ShiftLimit);

impl FromPyObject<'_, '_> for ShiftLimit {
    type Error = Refusal;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> Result<Self> {
        if value.is_none() {
            return Ok(Self(core::ShiftLimit::Unlimited));
        }
        match value.cast::<PyString>() {
            Ok(name) => choice("shift_limit", name.to_str()?, &[("default", Self::default())]),
            Err(_) => {
                let limit = value.extract::<Number>()?.within("spec_range", "shift_limit", 0, u32::MAX.into())?;
                Ok(Self(core::ShiftLimit::Updates(limit as u32)))
            }
        }
    }
}
