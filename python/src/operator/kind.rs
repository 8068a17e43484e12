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
type Given = [(String, i64)];

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
    /// The operator with these attributes.
    make: fn(&Self, &Given) -> Result<Operator, Refusal>,
}

static KINDS: [Kind; 3] = [
    Kind {
        name: schema::NAME,
        inputs: &schema::INPUTS,
        outputs: &schema::OUTPUTS,
        attributes: Attributes::names,
        make: |kind, given| Ok(Operator::KeyValueCache(KeyValueCache::new(kind.read(given)?)?)),
    },
    Kind {
        name: multi_head_attention::NAME,
        inputs: &multi_head_attention::INPUTS,
        outputs: &multi_head_attention::OUTPUTS,
        attributes: AttentionAttributes::names,
        make: |kind, given| Ok(Operator::MultiHeadAttention(MultiHeadAttention::new(kind.read(given)?)?)),
    },
    Kind {
        name: multi_head_cache_attention::NAME,
        inputs: &multi_head_cache_attention::INPUTS,
        outputs: &multi_head_cache_attention::OUTPUTS,
        attributes: CacheAttentionAttributes::names,
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

    /// The attributes of a node, given by name.
    fn read<A: OperatorAttributes>(&self, given: &Given) -> Result<A, Refusal> {
        let (mut attributes, known) = (A::default(), A::names());
        // Unknown names first: what is absent may be there misspelled.
        if let Some((name, _)) = given.iter().find(|(name, value)| !attributes.set(name, *value)) {
            let names = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            let message = format!("{} has no attribute {name:?}, expected one of {names}", self.name);
            return Err(Refusal::new("attribute_unknown", message));
        }
        let is_given = |name| given.iter().any(|(got, _)| got == name);
        if let Some((name, _)) = known.iter().find(|(name, required)| *required && !is_given(name)) {
            let message = format!("attribute {name} is absent, and {} has no default for it", self.name);
            return Err(Refusal::new("attribute_missing", message));
        }
        Ok(attributes)
    }
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
        let given = given.iter().map(|(name, value)| attribute(&name, &value)).collect::<PyResult<Vec<_>>>()?;
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

/// Name and value of an attribute.
fn attribute(name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<(String, i64)> {
    let Ok(name) = name.cast::<PyString>() else {
        let message = format!("an attribute is called {}, expected a str", name.repr()?);
        return Err(Refusal::new("attribute_unknown", message).into());
    };
    let name = name.to_string_lossy().into_owned();
    let number = value.extract().map_err(|error: PyErr| {
        let overflow = error.is_instance_of::<PyOverflowError>(value.py());
        let (kind, expected) =
            if overflow { ("attribute_out_of_range", "an int of 64 bits") } else { ("attribute_type", "an int") };
        let got = value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
        Refusal::new(kind, format!("attribute {name} is {got}, expected {expected}"))
    })?;
    Ok((name, number))
}
