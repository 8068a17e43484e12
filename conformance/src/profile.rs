//! What an implementation declares that it does, and how it answers what it does not do.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use kvcache_schema::{
    AttentionAttributes, Attributes, CacheAttentionAttributes, ElementType, StaticAttributes, multi_head_attention,
};
use serde::Deserialize;
use serde_yaml::Value;
use thiserror::Error;

use crate::rules::OperatorPage;
use crate::suite::Features;

/// A profile of an implementation. It is read from YAML:
///
/// ```
/// # let text = r#"
/// name: float16 in pages, head-major
/// outside: refuse                     # or: skip
/// operators:
///   KeyValueCache:
///     T1: [float16]
///     T2: [float16]
///     cache_mode: [1]
///     cache_layout: [3]
///     num_repeat: {min: 1, max: 8}
///   MultiHeadAttention:               # without limits
/// # "#;
/// # kvcache_conformance::Profile::parse(text)?;
/// # Ok::<(), kvcache_conformance::ProfileError>(())
/// ```
///
/// An operator is named as its page is. Limits are the types `T1`, `T2` and `T3`, which may be only those of a list;
/// the operator's attributes (also those that a graph leaves out, by their defaults) and the sizes `batch`,
/// `cache_heads` and, where it is no attribute, `head_dim`, which may be only those of a list or from `min` to `max`.
/// `attention_mass` is 1 where a call of attention gives that optional output, else 0.
/// A limit on a type that a call does not have limits nothing.
///
/// A case within all limits must give what it expects. Of another case of a listed operator, with `outside: refuse`,
/// every call must be refused, with whatever error, and leave cache and scale as they were; with `outside: skip` it is
/// unsupported. So is, always, a case of an operator that is not listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: String,
    operators: BTreeMap<OperatorPage, Limits>,
    outside: Outside,
}

/// What becomes of a case by a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// The implementation must do what the case expects.
    Within,
    /// It must refuse every call, since it does not do this.
    MustRefuse(String),
    /// It is not tested, since it does not do this.
    Unsupported(String),
}

#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the fields are what the messages name")]
pub enum ProfileError {
    /// It cannot be read.
    #[error("{}: {cause}", path.display())]
    Io { path: PathBuf, cause: std::io::Error },
    /// It is no YAML, has no key that it must have, or has one that it must not have.
    #[error(transparent)]
    Yaml(#[from] serde_yaml::Error),
    #[error("operators is empty: nothing would be tested")]
    NoOperators,
    #[error("no operator is called {name:?}; there are {}", list(OperatorPage::ALL.map(OperatorPage::name)))]
    Operator { name: String },
    /// An operator has no such type, attribute or size.
    #[error("{operator} has nothing to limit called {name:?}; there are {}", list(known))]
    Key { operator: &'static str, name: String, known: Vec<&'static str> },
    /// A limit is neither a list nor a range.
    #[error("{operator}, {name}: expected {expected}: {cause}")]
    Limit { operator: &'static str, name: String, expected: &'static str, cause: serde_yaml::Error },
    /// A limit allows nothing.
    #[error("{operator}, {name}: nothing is allowed, so nothing would be tested")]
    Nothing { operator: &'static str, name: String },
    /// A limit names a type that does not exist.
    #[error("{operator}, {name}: no element type is called {value:?}")]
    Type { operator: &'static str, name: String, value: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    name: String,
    outside: Outside,
    operators: BTreeMap<String, Option<BTreeMap<String, Value>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outside {
    Refuse,
    Skip,
}

/// What is allowed, by the name of what is limited: the types come first.
type Limits = BTreeMap<String, Allowed>;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Allowed {
    #[serde(skip)]
    Types(Vec<ElementType>),
    List(Vec<i64>),
    Range(Range),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    min: Option<i64>,
    max: Option<i64>,
}

const TYPES: [&str; 3] = ["T1", "T2", "T3"];

impl Profile {
    /// Reads a profile from a file.
    ///
    /// # Errors
    /// If it cannot be read, or is no profile.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let text = std::fs::read_to_string(path).map_err(|cause| ProfileError::Io { path: path.to_owned(), cause })?;
        Self::parse(&text)
    }

    /// Reads a profile from its text.
    ///
    /// # Errors
    /// If it is no profile.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        // As a value first, in which a key may stand once only.
        let file: ProfileFile = serde_yaml::from_value(serde_yaml::from_str(text)?)?;
        if file.operators.is_empty() {
            return Err(ProfileError::NoOperators);
        }
        let limits = |(name, limits): (String, Option<BTreeMap<String, Value>>)| {
            let page = OperatorPage::ALL.into_iter().find(|page| page.name() == name);
            let page = page.ok_or(ProfileError::Operator { name })?;
            let limit = |(name, value)| Ok((String::clone(&name), Allowed::read(page, name, value)?));
            Ok((page, limits.unwrap_or_default().into_iter().map(limit).collect::<Result<_, ProfileError>>()?))
        };
        let operators = file.operators.into_iter().map(limits).collect::<Result<_, ProfileError>>()?;
        Ok(Self { name: file.name, operators, outside: file.outside })
    }

    /// What becomes of a case that needs this.
    pub fn standing(&self, features: &Features) -> Standing {
        let Some(limits) = self.operators.get(&features.operator) else {
            return Standing::Unsupported(format!("{} is not in the profile", features.operator.name()));
        };
        let exceeded = limits.iter().find_map(|(name, allowed)| {
            let value = allowed.excludes(name, features)?;
            Some(format!("{name} is {value}, and the profile has {allowed}"))
        });
        match (exceeded, self.outside) {
            (None, _) => Standing::Within,
            (Some(reason), Outside::Refuse) => Standing::MustRefuse(reason),
            (Some(reason), Outside::Skip) => Standing::Unsupported(reason),
        }
    }
}

impl Allowed {
    fn read(page: OperatorPage, name: String, value: Value) -> Result<Self, ProfileError> {
        let (operator, known) = (page.name(), numbers(page));
        let allowed = if TYPES.contains(&name.as_str()) {
            let names: Vec<String> = match serde_yaml::from_value(value) {
                Ok(names) => names,
                Err(cause) => return Err(ProfileError::Limit { operator, name, expected: "a list of types", cause }),
            };
            let element = |value: String| ElementType::from_name(&value).ok_or(value);
            match names.into_iter().map(element).collect() {
                Ok(types) => Self::Types(types),
                Err(value) => return Err(ProfileError::Type { operator, name, value }),
            }
        } else if known.contains(&name.as_str()) {
            let expected = "a list of numbers or a range {min: .., max: ..}";
            match serde_yaml::from_value(value) {
                Ok(numbers) => numbers,
                Err(cause) => return Err(ProfileError::Limit { operator, name, expected, cause }),
            }
        } else {
            let known = TYPES.into_iter().chain(known).collect();
            return Err(ProfileError::Key { operator, name, known });
        };
        if allowed.is_empty() { Err(ProfileError::Nothing { operator, name }) } else { Ok(allowed) }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Types(types) => types.is_empty(),
            Self::List(numbers) => numbers.is_empty(),
            Self::Range(Range { min, max }) => min.zip(*max).is_some_and(|(min, max)| min > max),
        }
    }

    /// What a case has that the limit called `name` does not allow.
    fn excludes(&self, name: &str, features: &Features) -> Option<String> {
        let number = features.numbers.get(name);
        match self {
            Self::Types(types) => {
                features.types.get(name).filter(|element| !types.contains(element)).map(ElementType::to_string)
            }
            Self::List(numbers) => number.filter(|number| !numbers.contains(number)).map(i64::to_string),
            Self::Range(Range { min, max }) => {
                let range = min.unwrap_or(i64::MIN)..=max.unwrap_or(i64::MAX);
                number.filter(|number| !range.contains(number)).map(i64::to_string)
            }
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Types(types) => f.write_str(&list(types)),
            Self::List(numbers) => f.write_str(&list(numbers)),
            Self::Range(Range { min: Some(min), max: None }) => write!(f, "{min} or more"),
            Self::Range(Range { min: None, max: Some(max) }) => write!(f, "{max} or less"),
            Self::Range(Range { min: Some(min), max: Some(max) }) => write!(f, "{min} to {max}"),
            Self::Range(Range { min: None, max: None }) => f.write_str("any"),
        }
    }
}

/// The names of the numbers that cases of an operator have.
fn numbers(page: OperatorPage) -> Vec<&'static str> {
    let mut known = match page {
        OperatorPage::KeyValueCache => Attributes::NAMES.to_vec(),
        OperatorPage::StaticKeyValueCache => StaticAttributes::SPEC.iter().map(|spec| spec.name).collect(),
        OperatorPage::MultiHeadAttention => AttentionAttributes::SPEC.iter().map(|spec| spec.name).collect(),
        OperatorPage::MultiHeadCacheAttention => {
            let of_cache =
                Attributes::NAMES.into_iter().filter(|name| *name != CacheAttentionAttributes::NOT_AN_ATTRIBUTE);
            AttentionAttributes::SPEC.iter().map(|spec| spec.name).chain(of_cache).collect()
        }
    };
    known.extend(["batch", "cache_heads"]);
    if matches!(page, OperatorPage::MultiHeadAttention | OperatorPage::MultiHeadCacheAttention) {
        known.push(multi_head_attention::MASS);
    }
    if !known.contains(&"head_dim") {
        known.push("head_dim");
    }
    known
}

fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}
