//! `Append`: what a step appends to a sequence.

use kvcache_manager as core;
use numpy::{Element, PyArray1, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyString};
use smallvec::{SmallVec, smallvec};

use crate::arguments::{Number, not_of_type, type_error};
use crate::id::Id;
use crate::refusal::{Refusal, Result};

type Tokens = SmallVec<[u32; 4]>;

#[derive(Debug)]
enum Rows {
    Tokens(Tokens),
    Count(usize),
}

/// New rows of the sequence `s`: one for each of `tokens`, or `n` rows whose tokens the manager does not know.
///
/// `tokens` is one token id, or a list, a numpy array or any other iterable of them: 0 to 2**32 - 1. A copy is kept.
/// `first_pos` is the position of the first row, and the others follow; unless given, it is the one after the last
/// position of the sequence, or 0.
///
/// Tokens of an empty sequence, from position 0 on, are looked up in the prefix index: the rows that are found need not
/// be computed, and are not in the step. At most `most_cached` of them, where it is given.
///
/// Raises TypeError unless one of `tokens` and `n` is given, and ManagerError for numbers out of range. Everything else
/// is checked by `Manager.begin_step`.
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct Append {
    seq: core::SeqId,
    rows: Rows,
    /// The position of the first row, or None where it follows from the sequence.
    #[pyo3(get)]
    first_pos: Option<i64>,
    /// The most tokens that come from the prefix index, or None.
    #[pyo3(get)]
    most_cached: Option<usize>,
}

impl Append {
    /// This append, as the manager takes it.
    pub fn borrow(&self) -> core::Append<'_> {
        let append = match &self.rows {
            Rows::Tokens(tokens) => core::Append::tokens(self.seq, tokens),
            Rows::Count(n) => core::Append::count(self.seq, *n),
        };
        let append = self.first_pos.map_or(append, |first_pos| append.at(first_pos));
        self.most_cached.map_or(append, |most_cached| append.most_cached(most_cached))
    }
}

#[pymethods]
impl Append {
    #[new]
    #[pyo3(signature = (s, tokens=None, n=None, first_pos=None, *, most_cached=None))]
    fn new(
        s: Id,
        tokens: Option<&Bound<'_, PyAny>>,
        n: Option<Number>,
        first_pos: Option<Number>,
        most_cached: Option<Number>,
    ) -> Result<Self> {
        let rows = match (tokens, n) {
            (Some(tokens), None) => Rows::Tokens(token_ids(tokens)?),
            (None, Some(n)) => Rows::Count(n.count("n")?),
            _ => return Err(PyTypeError::new_err("Append takes either tokens or n").into()),
        };
        let first_pos = first_pos.map(|first_pos| first_pos.any("first_pos")).transpose()?;
        let most_cached = most_cached.map(|most| most.count("most_cached")).transpose()?;
        Ok(Self { seq: s.0, rows, first_pos, most_cached })
    }

    /// The sequence's id.
    #[getter]
    fn s(&self) -> u64 {
        Id(self.seq).number()
    }

    /// The token ids, or None where only their number is known.
    #[getter]
    fn tokens(&self) -> Option<Vec<u32>> {
        match &self.rows {
            Rows::Tokens(tokens) => Some(tokens.to_vec()),
            Rows::Count(_) => None,
        }
    }

    /// The number of rows.
    #[getter]
    fn n(&self) -> usize {
        match &self.rows {
            Rows::Tokens(tokens) => tokens.len(),
            Rows::Count(n) => *n,
        }
    }

    fn __repr__(&self) -> String {
        let first_pos = self.first_pos.map_or(String::new(), |first_pos| format!(", first_pos={first_pos}"));
        let most = self.most_cached.map_or(String::new(), |most| format!(", most_cached={most}"));
        match &self.rows {
            Rows::Tokens(tokens) => format!("Append({}, tokens={:?}{first_pos}{most})", self.s(), tokens.as_slice()),
            Rows::Count(n) => format!("Append({}, n={n}{first_pos}{most})", self.s()),
        }
    }
}

fn token_ids(tokens: &Bound<'_, PyAny>) -> Result<Tokens> {
    // The usual types come first, as each that is tried and is not it takes time.
    if tokens.is_instance_of::<PyInt>() {
        return Ok(smallvec![token_id(tokens, 0)?]);
    }
    if let Ok(list) = tokens.cast::<PyList>() {
        return list.iter().enumerate().map(|(i, token)| token_id(&token, i)).collect();
    }
    if let Ok(array) = tokens.cast::<PyUntypedArray>() {
        if array.ndim() > 1 {
            let message = format!("tokens: expected one axis, got an array of shape {:?}", array.shape());
            return Err(PyTypeError::new_err(message).into());
        }
        for numbers in [of_array::<i64>, of_array::<i32>, of_array::<u32>] {
            if let Some(tokens) = numbers(tokens) {
                return tokens;
            }
        }
    }
    if tokens.is_instance_of::<PyString>() {
        return Err(type_error("tokens", "an int or an iterable of ints", tokens).into());
    }
    match tokens.try_iter() {
        Ok(iterator) => iterator.enumerate().map(|(i, token)| token_id(&token?, i)).collect(),
        // A number of another type, or nothing of the kind.
        Err(error) if error.is_instance_of::<PyTypeError>(tokens.py()) => Ok(smallvec![token_id(tokens, 0)?]),
        Err(error) => Err(error.into()),
    }
}

/// Token `i` of an append.
fn token_id(token: &Bound<'_, PyAny>, i: usize) -> Result<u32> {
    token.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(token.py()) {
            out_of_range(token.extract::<i128>().ok(), i)
        } else {
            not_of_type(error, "tokens", "an int or an iterable of ints", token).into()
        }
    })
}

/// The tokens of an array of this type and rank 1; `None` for all else.
fn of_array<T: Element + Copy + Into<i64>>(tokens: &Bound<'_, PyAny>) -> Option<Result<Tokens>> {
    let array = tokens.cast::<PyArray1<T>>().ok()?.try_readonly().ok()?;
    let token =
        |(i, &token): (usize, &T)| u32::try_from(token.into()).map_err(|_| out_of_range(Some(token.into().into()), i));
    Some(array.as_array().iter().enumerate().map(token).collect())
}

fn out_of_range(got: Option<i128>, i: usize) -> Refusal {
    let number = got.map_or_else(|| "of more than 128 bits".to_owned(), |number| number.to_string());
    let message = format!("tokens: token {i} is {number}, expected 0 to {}", u32::MAX);
    Refusal::manager("range", message).with("name", "tokens").with("got", got).with("min", 0).with("max", u32::MAX)
}

/// One of the appends of a step.
fn append(item: Bound<'_, PyAny>) -> PyResult<Bound<'_, Append>> {
    item.cast_into().map_err(|error| type_error("appends", "Append", &error.into_inner()))
}

/// Appends from a list, or from what can be iterated.
pub(crate) fn appends_of<'py>(appends: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Append>>> {
    match appends.cast::<PyList>() {
        Ok(list) => list.iter().map(append).collect(),
        Err(_) => appends.try_iter()?.map(|item| append(item?)).collect(),
    }
}

/// Numbers of tokens by sequence, of a dict {s: n}.
pub(crate) fn counts_of(appends: &Bound<'_, PyDict>) -> Result<Vec<(core::SeqId, usize)>> {
    appends.iter().map(|(s, n)| Ok((s.extract::<Id>()?.0, n.extract::<Number>()?.count("n")?))).collect()
}
