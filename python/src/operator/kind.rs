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

/// One of the operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    KeyValueCache,
    MultiHeadAttention,
    MultiHeadCacheAttention,
}

impl Kind {
    const ALL: [Self; 3] = [Self::KeyValueCache, Self::MultiHeadAttention, Self::MultiHeadCacheAttention];

    /// The operator of this name.
    pub fn from_name(name: &str) -> Result<Self, Refusal> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Refusal::new("operator_unknown", format!("there is no operator {name:?}, expected one of {names}"))
        })
    }

    /// Its name in a graph.
    pub fn name(self) -> &'static str {
        match self {
            Self::KeyValueCache => schema::NAME,
            Self::MultiHeadAttention => multi_head_attention::NAME,
            Self::MultiHeadCacheAttention => multi_head_cache_attention::NAME,
        }
    }

    /// The names of its inputs, by position.
    pub fn inputs(self) -> &'static [&'static str] {
        match self {
            Self::KeyValueCache => &schema::INPUTS,
            Self::MultiHeadAttention => &multi_head_attention::INPUTS,
            Self::MultiHeadCacheAttention => &multi_head_cache_attention::INPUTS,
        }
    }

    /// The names of its outputs, by position.
    pub fn outputs(self) -> &'static [&'static str] {
        match self {
            Self::KeyValueCache => &schema::OUTPUTS,
            Self::MultiHeadAttention | Self::MultiHeadCacheAttention => &multi_head_attention::OUTPUTS,
        }
    }

    /// The names of its attributes, and whether each must be given.
    pub fn attributes(self) -> Vec<(&'static str, bool)> {
        match self {
            Self::KeyValueCache => Attributes::names(),
            Self::MultiHeadAttention => AttentionAttributes::names(),
            Self::MultiHeadCacheAttention => CacheAttentionAttributes::names(),
        }
    }

    /// The attributes of a node, given by name.
    fn read<A: OperatorAttributes>(self, given: &[(String, i64)]) -> Result<A, Refusal> {
        let (mut attributes, known) = (A::default(), A::names());
        // Unknown names first: what is absent may be there misspelled.
        if let Some((name, _)) = given.iter().find(|(name, value)| !attributes.set(name, *value)) {
            let names = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            let message = format!("{} has no attribute {name:?}, expected one of {names}", self.name());
            return Err(Refusal::new("attribute_unknown", message));
        }
        let is_given = |name| given.iter().any(|(got, _)| got == name);
        if let Some((name, _)) = known.iter().find(|(name, required)| *required && !is_given(name)) {
            let message = format!("attribute {name} is absent, and {} has no default for it", self.name());
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
    pub fn new(kind: Kind, given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let given = given.iter().map(|(name, value)| attribute(&name, &value)).collect::<PyResult<Vec<_>>>()?;
        let operator = match kind {
            Kind::KeyValueCache => KeyValueCache::new(kind.read(&given)?).map(Self::KeyValueCache),
            Kind::MultiHeadAttention => MultiHeadAttention::new(kind.read(&given)?).map(Self::MultiHeadAttention),
            Kind::MultiHeadCacheAttention => {
                MultiHeadCacheAttention::new(kind.read(&given)?).map(Self::MultiHeadCacheAttention)
            }
        };
        operator.map_err(|error| Refusal::from(error).into())
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
