//! Arguments from Python: numbers in their range, from any object with `__index__`, and names out of several.

use kvcache_manager as core;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::refusal::refusal;

/// A number of 64 bits.
///
/// # Errors
/// `TypeError` for anything but an integer, `ManagerError` of this kind for one of more than 64 bits, and what
/// `__index__` raises.
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
/// `TypeError` for anything but an integer, `ManagerError` of this kind for another one.
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
/// The errors of [`within`].
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

/// Arguments by their names: each is a type, which says the name where it refuses a number.
macro_rules! numbers {
    ($($kind:literal { $($Type:ident $name:ident: $number:ty = $read:ident),* $(,)? })*) => { $($(
        #[derive(Debug, Clone, Copy)]
        pub struct $Type(pub $number);

        impl FromPyObject<'_, '_> for $Type {
            type Error = PyErr;

            fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
                $read($kind, stringify!($name), &value).map(Self)
            }
        }
    )*)* };
}

numbers! {
    "spec_range" {
        MaxPages max_pages: usize = count,
        Window window: usize = count,
        Sink sink: usize = count,
        Slack slack: usize = count,
        Pad pad: usize = count,
        Init init: usize = count,
        Local local: usize = count,
        BlockLen block: usize = count,
        Topk topk: usize = count,
        ReprTopk repr_topk: usize = count,
        MaxCached max_cached: usize = count,
        NumRepeat num_repeat: usize = count,
    }
    "range" {
        Nbytes nbytes: usize = count,
        Reserve reserve: usize = count,
        Pages pages: usize = count,
        Index index: usize = count,
        Layer layer: usize = count,
        N n: usize = count,
        MaxMoves max_moves: usize = count,
        P0 p0: i64 = integer,
        P1 p1: i64 = integer,
        Delta delta: i64 = integer,
        D d: i64 = integer,
        NCtx n_ctx: i64 = integer,
        NNew n_new: i64 = integer,
        NKeep n_keep: i64 = integer,
        NDiscard n_discard: i64 = integer,
        GaN ga_n: i64 = integer,
        GaW ga_w: i64 = integer,
    }
}

/// How many updates may rotate a sequence's rows: a number, or `Some(None)` for any; `None` for as many as the type of
/// the cache bears.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShiftLimit(pub core::ShiftLimit);

impl FromPyObject<'_, '_> for ShiftLimit {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if value.is_none() {
            return Ok(Self(core::ShiftLimit::Unlimited));
        }
        match value.cast::<PyString>() {
            Ok(name) => choice("shift_limit", name.to_str()?, &[("default", Self::default())]),
            Err(_) => {
                let limit = within("spec_range", "shift_limit", &value, 0, u32::MAX.into())?;
                Ok(Self(core::ShiftLimit::Updates(limit as u32)))
            }
        }
    }
}
