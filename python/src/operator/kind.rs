//! The operators by their names, with attributes from Python.

use kvcache_op::schema::{OperatorAttributes, OperatorKind};
use kvcache_op::{Attributes, Error, Operator};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::refusal::{Refusal, Result};

/// The value of an attribute.
enum Number {
    Integer(i64),
    Float(f32),
}

/// The operators that graphs of the book have, in the order in which they are listed.
pub const OF_GRAPHS: [OperatorKind; 3] =
    [OperatorKind::KeyValueCache, OperatorKind::MultiHeadAttention, OperatorKind::MultiHeadCacheAttention];

/// The operator of this name among `kinds`.
pub fn kind(name: &str, kinds: &[OperatorKind]) -> Result<OperatorKind> {
    kinds.iter().copied().find(|kind| kind.name() == name).ok_or_else(|| {
        let names = OF_GRAPHS.map(OperatorKind::name).join(", ");
        Refusal::new("operator_unknown", format!("there is no operator {name:?}, expected one of {names}"))
    })
}

/// The operator with these attributes.
pub fn operator(kind: OperatorKind, given: &Bound<'_, PyDict>) -> Result<Operator> {
    Operator::new(kind, |attributes| set(kind.name(), attributes, given))
}

/// Sets the attributes of a node, given by name.
fn set(operator: &str, attributes: &mut dyn OperatorAttributes, given: &Bound<'_, PyDict>) -> Result<()> {
    let (known, floats) = (attributes.names(), attributes.floats());
    let given = given.iter().map(|(name, value)| attribute(&floats, &name, &value)).collect::<Result<Vec<_>>>()?;
    // Unknown names first: what is absent may be there misspelled.
    let mut set = |name: &str, value: &Number| match *value {
        Number::Integer(value) => attributes.set(name, value),
        Number::Float(value) => attributes.set_float(name, value),
    };
    if let Some((name, _)) = given.iter().find(|(name, value)| !set(name, value)) {
        let names = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let message = format!("{operator} has no attribute {name:?}, expected one of {names}");
        return Err(Refusal::new("attribute_unknown", message));
    }
    let is_given = |name| given.iter().any(|(got, _)| got == name);
    if let Some((name, _)) = known.iter().find(|(name, required)| *required && !is_given(name)) {
        let message = format!("attribute {name} is absent, and {operator} has no default for it");
        return Err(Refusal::new("attribute_missing", message));
    }
    Ok(())
}

/// The names of an operator's attributes, in the specification's order.
pub fn attribute_names(kind: OperatorKind) -> Vec<&'static str> {
    let mut names = Vec::new();
    // No attributes are legal ones or not: only the names are asked for.
    let _ = Operator::new(kind, |attributes| {
        names = attributes.names().into_iter().map(|(name, _)| name).collect();
        Ok::<_, Error>(())
    });
    names
}

/// The attributes of an operator's cache, if it has one.
pub fn cache_attributes(operator: &Operator) -> Option<&Attributes> {
    match operator {
        Operator::KeyValueCache(op) => Some(op.attributes()),
        Operator::MultiHeadCacheAttention(op) => Some(&op.attributes().cache),
        _ => None,
    }
}

/// Name and value of an attribute, which is an int unless it is one of the `floats`.
fn attribute(floats: &[&str], name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> Result<(String, Number)> {
    let Ok(name) = name.cast::<PyString>() else {
        let message = format!("an attribute is called {}, expected a str", name.repr()?);
        return Err(Refusal::new("attribute_unknown", message));
    };
    let name = name.to_string_lossy().into_owned();
    let is_float = floats.contains(&&*name);
    let number = match is_float {
        true => value.extract().map(Number::Float),
        false => value.extract().map(Number::Integer),
    };
    let number = number.map_err(|error: PyErr| {
        let overflow = error.is_instance_of::<PyOverflowError>(value.py());
        let (kind, expected) = match (overflow, is_float) {
            (true, false) => ("attribute_out_of_range", "an int of 64 bits"),
            (true, true) => ("attribute_out_of_range", "a finite number"),
            (false, false) => ("attribute_type", "an int"),
            (false, true) => ("attribute_type", "a number"),
        };
        let got = value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
        Refusal::new(kind, format!("attribute {name} is {got}, expected {expected}"))
    })?;
    Ok((name, number))
}
