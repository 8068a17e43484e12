//! The operators by their names, with attributes from Python.

use kvcache_op::schema::{self, OperatorAttributes, multi_head_attention, multi_head_cache_attention};
use kvcache_op::{
    AttentionAttributes, Attributes, CacheAttentionAttributes, KeyValueCache, MultiHeadAttention,
    MultiHeadCacheAttention,
};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::refusal::Refusal;

/// The attributes of a node, by name.
type Given = [(String, Number)];

/// The value of an attribute.
enum Number {
    Integer(i64),
    Float(f32),
}

/// The names of an operator, and how it is made.
pub struct Kind {
    /// The name in a graph.
    pub name: &'static str,
    /// The names of the inputs, by position.
    pub inputs: &'static [&'static str],
    /// The names of the outputs, by position.
    pub outputs: &'static [&'static str],
    /// The names of the attributes, and whether each must be given.
    pub attributes: fn() -> Vec<(&'static str, bool)>,
    /// The names of the attributes that are floats.
    floats: fn() -> Vec<&'static str>,
    /// The operator with these attributes.
    make: fn(&Self, &Given) -> Result<Operator, Refusal>,
}

static KINDS: [Kind; 3] = [
    Kind {
        name: schema::NAME,
        inputs: &schema::INPUTS,
        outputs: &schema::OUTPUTS,
        attributes: Attributes::names,
        floats: Attributes::floats,
        make: |kind, given| Ok(Operator::KeyValueCache(KeyValueCache::new(kind.read(given)?)?)),
    },
    Kind {
        name: multi_head_attention::NAME,
        inputs: &multi_head_attention::INPUTS,
        outputs: &multi_head_attention::OUTPUTS,
        attributes: AttentionAttributes::names,
        floats: AttentionAttributes::floats,
        make: |kind, given| Ok(Operator::MultiHeadAttention(MultiHeadAttention::new(kind.read(given)?)?)),
    },
    Kind {
        name: multi_head_cache_attention::NAME,
        inputs: &multi_head_cache_attention::INPUTS,
        outputs: &multi_head_cache_attention::OUTPUTS,
        attributes: CacheAttentionAttributes::names,
        floats: CacheAttentionAttributes::floats,
        make: |kind, given| Ok(Operator::MultiHeadCacheAttention(MultiHeadCacheAttention::new(kind.read(given)?)?)),
    },
];

impl Kind {
    /// The operator of this name.
    pub fn from_name(name: &str) -> Result<&'static Self, Refusal> {
        KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
            let names = KINDS.each_ref().map(|kind| kind.name).join(", ");
            Refusal::new("operator_unknown", format!("there is no operator {name:?}, expected one of {names}"))
        })
    }

    fn read<A: OperatorAttributes>(&self, given: &Given) -> Result<A, Refusal> {
        read(self.name, given)
    }
}

/// The attributes of a node of the operator `name`, from Python.
///
/// # Errors
/// `KvCacheError` of kind `attribute_unknown`, `attribute_missing`, `attribute_type` or `attribute_out_of_range`.
pub fn attributes_of<A: OperatorAttributes>(name: &str, given: &Bound<'_, PyDict>) -> PyResult<A> {
    let floats = A::floats();
    let given = given.iter().map(|(name, value)| attribute(&floats, &name, &value)).collect::<PyResult<Vec<_>>>()?;
    Ok(read(name, &given)?)
}

/// The attributes of a node, given by name.
fn read<A: OperatorAttributes>(operator: &str, given: &Given) -> Result<A, Refusal> {
    let (mut attributes, known) = (A::default(), A::names());
    // Unknown names first: what is absent may be there misspelled.
    let mut set = |name: &str, value: &Number| match *value {
        Number::Integer(value) => attributes.set(name, value),
        Number::Float(value) => attributes.set_float(name, value),
    };
    if let Some((name, _)) = given.iter().find(|(name, value)| !set(name, value)) {
        let names = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let message = format!("{} has no attribute {name:?}, expected one of {names}", operator);
        return Err(Refusal::new("attribute_unknown", message));
    }
    let is_given = |name| given.iter().any(|(got, _)| got == name);
    if let Some((name, _)) = known.iter().find(|(name, required)| *required && !is_given(name)) {
        let message = format!("attribute {name} is absent, and {} has no default for it", operator);
        return Err(Refusal::new("attribute_missing", message));
    }
    Ok(attributes)
}

/// An operator with checked attributes.
#[derive(Debug)]
pub enum Operator {
    KeyValueCache(KeyValueCache),
    MultiHeadAttention(MultiHeadAttention),
    MultiHeadCacheAttention(MultiHeadCacheAttention),
}

impl Operator {
    /// The operator with these attributes.
    ///
    /// # Errors
    /// `KvCacheError` of kind `attribute_unknown`, `attribute_missing`, `attribute_type` or `attribute_out_of_range`.
    pub fn new(kind: &Kind, given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let floats = (kind.floats)();
        let given =
            given.iter().map(|(name, value)| attribute(&floats, &name, &value)).collect::<PyResult<Vec<_>>>()?;
        Ok((kind.make)(kind, &given)?)
    }

    /// The attributes of its cache, if it has one.
    pub fn cache_attributes(&self) -> Option<&Attributes> {
        match self {
            Self::KeyValueCache(op) => Some(op.attributes()),
            Self::MultiHeadAttention(_) => None,
            Self::MultiHeadCacheAttention(op) => Some(&op.attributes().cache),
        }
    }
}

/// Name and value of an attribute, which is an int unless it is one of the `floats`.
fn attribute(floats: &[&str], name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<(String, Number)> {
    let Ok(name) = name.cast::<PyString>() else {
        let message = format!("an attribute is called {}, expected a str", name.repr()?);
        return Err(Refusal::new("attribute_unknown", message).into());
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
