//! The operators by their names, with attributes from Python.

use kvcache_op::schema::{self, AttributeSpec, multi_head_attention, multi_head_cache_attention};
use kvcache_op::{
    AttentionAttributes, Attributes, CacheAttentionAttributes, KeyValueCache, MultiHeadAttention,
    MultiHeadCacheAttention,
};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::refused::Refused;

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
    pub fn from_name(name: &str) -> Result<Self, Refused> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Refused::new("operator_unknown", format!("there is no operator {name:?}, expected one of {names}"))
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
        fn named<A>(specs: &[AttributeSpec<A>]) -> impl Iterator<Item = (&'static str, bool)> {
            specs.iter().map(|spec| (spec.name, spec.required))
        }
        let cache = || named(&Attributes::SPEC);
        let attention = || named(&AttentionAttributes::SPEC);
        match self {
            Self::KeyValueCache => cache().collect(),
            Self::MultiHeadAttention => attention().collect(),
            Self::MultiHeadCacheAttention => attention()
                .chain(cache().filter(|(name, _)| *name != CacheAttentionAttributes::NOT_AN_ATTRIBUTE))
                .collect(),
        }
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
        // Unknown names first: what is absent may be there misspelled.
        let set_all = |set: &mut dyn FnMut(&str, i64) -> bool| {
            let known = kind.attributes();
            if let Some((name, _)) = given.iter().find(|(name, value)| !set(name, *value)) {
                let names = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
                let message = format!("{} has no attribute {name:?}, expected one of {names}", kind.name());
                return Err(Refused::new("attribute_unknown", message));
            }
            let is_given = |name| given.iter().any(|(got, _)| got == name);
            if let Some((name, _)) = known.iter().find(|(name, required)| *required && !is_given(name)) {
                let message = format!("attribute {name} is absent, and {} has no default for it", kind.name());
                return Err(Refused::new("attribute_missing", message));
            }
            Ok(())
        };
        let operator = match kind {
            Kind::KeyValueCache => {
                let mut attributes = Attributes::default();
                set_all(&mut |name, value| attributes.set(name, value))?;
                KeyValueCache::new(attributes).map(Self::KeyValueCache)
            }
            Kind::MultiHeadAttention => {
                let mut attributes = AttentionAttributes::default();
                set_all(&mut |name, value| attributes.set(name, value))?;
                MultiHeadAttention::new(attributes).map(Self::MultiHeadAttention)
            }
            Kind::MultiHeadCacheAttention => {
                let mut attributes = CacheAttentionAttributes::default();
                set_all(&mut |name, value| attributes.set(name, value))?;
                MultiHeadCacheAttention::new(attributes).map(Self::MultiHeadCacheAttention)
            }
        };
        operator.map_err(|error| Refused::from(error).into())
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
        return Err(Refused::new("attribute_unknown", message).into());
    };
    let name = name.to_string_lossy().into_owned();
    let number = value.extract().map_err(|error: PyErr| {
        let overflow = error.is_instance_of::<PyOverflowError>(value.py());
        let (kind, expected) =
            if overflow { ("attribute_out_of_range", "an int of 64 bits") } else { ("attribute_type", "an int") };
        let got = value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
        Refused::new(kind, format!("attribute {name} is {got}, expected {expected}"))
    })?;
    Ok((name, number))
}
