//! Which cases are run, by their properties.

use std::collections::{BTreeMap, BTreeSet};

use kvcache_schema::{ElementType, multi_head_attention};
use thiserror::Error;

use crate::case::{HEAD_SINK, Operator};

/// Conditions on cases: all must hold for a case to be run. Each names a [property](crate::Case::properties) and the
/// values that it may have. It says nothing of cases without the property.
#[derive(Debug, Clone, Default)]
pub struct Only(BTreeMap<String, Vec<String>>);

#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the fields are what the messages name")]
pub enum OnlyError {
    #[error(
        "no case has a property called {name:?}; there are {}",
        properties().into_iter().collect::<Vec<_>>().join(", ")
    )]
    Name { name: String },
    #[error("{name}: no case has the value {value:?}")]
    Value { name: String, value: String },
    #[error("{name}: nothing is allowed, so nothing would be run")]
    Nothing { name: String },
}

/// The types and sizes that are properties beside the operator and its attributes.
const TYPES: [&str; 3] = ["T1", "T2", "T3"];
const SIZES: [&str; 5] = ["batch", "cache_heads", "head_dim", multi_head_attention::MASS, HEAD_SINK];

fn properties() -> BTreeSet<&'static str> {
    let attributes = Operator::ALL.into_iter().flat_map(|operator| operator.attributes().into_keys());
    attributes.chain(floats()).chain(TYPES).chain(SIZES).chain(["operator"]).collect()
}

fn floats() -> impl Iterator<Item = &'static str> {
    Operator::ALL.into_iter().flat_map(|operator| operator.floats().into_keys())
}

impl Only {
    /// Adds a condition: the property may have these values.
    ///
    /// # Errors
    /// If there is no such property, it has no such value, or there is no value.
    pub fn add(&mut self, name: &str, values: &[String]) -> Result<(), OnlyError> {
        let owned = || name.to_owned();
        if !properties().contains(name) {
            return Err(OnlyError::Name { name: owned() });
        }
        if values.is_empty() {
            return Err(OnlyError::Nothing { name: owned() });
        }
        let is_float = floats().any(|float| float == name);
        let is_possible = |value: &str| match name {
            "operator" => Operator::ALL.iter().any(|operator| operator.name() == value),
            _ if TYPES.contains(&name) => ElementType::from_name(value).is_some(),
            _ if is_float => value.parse::<f32>().is_ok(),
            _ => value.parse::<i64>().is_ok_and(|number| number.to_string() == value),
        };
        if let Some(value) = values.iter().find(|value| !is_possible(value)) {
            return Err(OnlyError::Value { name: owned(), value: value.clone() });
        }
        // A float is written in many ways, in a property as here.
        let written = |value: &String| value.parse::<f32>().ok().filter(|_| is_float).map(|x| x.to_string());
        let values = values.iter().map(|value| written(value).unwrap_or_else(|| value.clone()));
        self.0.entry(owned()).or_default().extend(values);
        Ok(())
    }

    /// Why a case is not run, if it is not.
    pub(crate) fn excludes(&self, properties: &BTreeMap<&'static str, String>) -> Option<String> {
        self.0.iter().find_map(|(name, allowed)| {
            let value = properties.get(name.as_str())?;
            (!allowed.contains(value)).then(|| format!("{name} is {value}, only {} is run", allowed.join(" or ")))
        })
    }
}
