//! The numbers that a manager is given, by the names of their arguments.

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::numbers::{choice, count, integer, within};

macro_rules! numbers {
    ($($kind:literal { $($name:ident: $number:ty = $read:ident),* $(,)? })*) => {
        $($(
            pub fn $name(value: &Bound<'_, PyAny>) -> PyResult<$number> {
                $read($kind, stringify!($name), value)
            }
        )*)*
    };
}

fn optional_count(kind: &'static str, name: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    if value.is_none() { Ok(None) } else { count(kind, name, value).map(Some) }
}

fn optional_integer(kind: &'static str, name: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    if value.is_none() { Ok(None) } else { integer(kind, name, value).map(Some) }
}

numbers! {
    "spec_range" {
        max_pages: Option<usize> = optional_count,
        window: Option<usize> = optional_count,
        sink: usize = count,
        slack: usize = count,
        pad: usize = count,
        init: usize = count,
        local: usize = count,
        block: usize = count,
        topk: usize = count,
        repr_topk: Option<usize> = optional_count,
        max_cached: Option<usize> = optional_count,
        num_repeat: usize = count,
    }
    "range" {
        nbytes: usize = count,
        reserve: usize = count,
        pages: usize = count,
        index: usize = count,
        layer: usize = count,
        n: usize = count,
        max_moves: Option<usize> = optional_count,
        p0: i64 = integer,
        p1: i64 = integer,
        delta: i64 = integer,
        d: i64 = integer,
        n_ctx: i64 = integer,
        n_new: i64 = integer,
        n_keep: i64 = integer,
        n_discard: Option<i64> = optional_integer,
        ga_n: i64 = integer,
        ga_w: i64 = integer,
    }
}

/// How many updates may rotate a sequence's rows: a number, or `Some(None)` for any; `None` for as many as the type of the
/// cache bears.
#[derive(Debug, Clone, Copy)]
pub struct ShiftLimit(pub Option<Option<u32>>);

pub fn shift_limit(value: &Bound<'_, PyAny>) -> PyResult<ShiftLimit> {
    if value.is_none() {
        return Ok(ShiftLimit(Some(None)));
    }
    match value.cast::<PyString>() {
        Ok(name) => choice("shift_limit", name.to_str()?, &[("default", ShiftLimit(None))]),
        Err(_) => {
            let limit = within("spec_range", "shift_limit", value, 0, u32::MAX.into())?;
            Ok(ShiftLimit(Some(Some(limit as u32))))
        }
    }
}
