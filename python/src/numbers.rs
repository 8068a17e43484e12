//! Numbers from Python: any object with `__index__`, in its range.

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;

use crate::refusal::refusal;

/// A number of 64 bits.
///
/// # Errors
/// `TypeError` for what is no integer, `ManagerError` of this kind for one of more than 64 bits, and what `__index__`
/// raises.
pub fn integer(kind: &'static str, name: &'static str, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    value.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            let message = format!("{name} has more than 64 bits, expected {} to {}", i64::MIN, i64::MAX);
            refusal!(kind, message, name = name, min = i64::MIN, max = i64::MAX).into()
        } else {
            not_of_type(error, name, "an int", value)
        }
    })
}

/// A number between these two, inclusive.
///
/// # Errors
/// `TypeError` for what is no integer, `ManagerError` of this kind for another one.
pub fn within(kind: &'static str, name: &'static str, value: &Bound<'_, PyAny>, min: i64, max: i64) -> PyResult<i64> {
    let got = integer(kind, name, value)?;
    if (min..=max).contains(&got) {
        return Ok(got);
    }
    let message = format!("{name} is {got}, expected {min} to {max}");
    Err(refusal!(kind, message, name = name, got = got, min = min, max = max).into())
}

/// A number that counts something.
///
/// # Errors
/// Those of [`within`].
pub fn count(kind: &'static str, name: &'static str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    // Not negative: 64 bits hold it.
    within(kind, name, value, 0, i64::MAX).map(|count| count as usize)
}

/// A name out of several.
///
/// # Errors
/// `ManagerError` of kind `spec_name`.
pub fn choice<T: Copy>(name: &'static str, got: &str, choices: &[(&'static str, T)]) -> PyResult<T> {
    if let Some((_, choice)) = choices.iter().find(|(choice, _)| *choice == got) {
        return Ok(*choice);
    }
    let expected = choices.iter().map(|(choice, _)| *choice).collect::<Vec<_>>().join(", ");
    let message = format!("{name} is {got:?}, expected one of {expected}");
    Err(refusal!("spec_name", message, name = name, got = got.to_owned(), expected = expected).into())
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
