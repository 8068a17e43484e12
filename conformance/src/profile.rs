//! What an implementation declares that it does, and how it answers what it does not do.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use kvcache_schema::{AttentionAttributes, Attributes, CacheAttentionAttributes, ElementType, StaticAttributes};
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

/// A file that is no profile.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// It cannot be read.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// It is no YAML, has no key that it must have, or has one that it must not have.
    #[error(transparent)]
    Yaml(#[from] serde_yaml::Error),
    /// It lists no operator.
    #[error("operators is empty: nothing would be tested")]
    NoOperators,
    /// An operator does not exist.
    #[error("no operator is called {name:?}; there are {}", list(OperatorPage::ALL.map(OperatorPage::name)))]
    Operator {
        /// Its name.
        name: String,
    },
    /// An operator has no such type, attribute or size.
    #[error("{operator} has nothing to limit called {name:?}; there are {}", list(known))]
    Key {
        /// The operator.
        operator: &'static str,
        /// The key.
        name: String,
        /// The keys that there are.
        known: Vec<&'static str>,
    },
    /// A limit is neither a list nor a range.
    #[error("{operator}, {name}: expected {expected}: {cause}")]
    Limit {
        /// The operator.
        operator: &'static str,
        /// The key.
        name: String,
        /// What it must be.
        expected: &'static str,
        /// Why it is not.
        cause: serde_yaml::Error,
    },
    /// A limit allows nothing.
    #[error("{operator}, {name}: nothing is allowed, so nothing would be tested")]
    Nothing {
        /// The operator.
        operator: &'static str,
        /// The key.
        name: String,
    },
    /// A limit names a type that does not exist.
    #[error("{operator}, {name}: no element type is called {value:?}")]
    Type {
        /// The operator.
        operator: &'static str,
        /// The key.
        name: String,
        /// The type's name.
        value: String,
    },
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

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Limits {
    types: BTreeMap<String, Vec<ElementType>>,
    numbers: BTreeMap<String, Numbers>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Numbers {
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
            Ok((page, Limits::read(page, limits.unwrap_or_default())?))
        };
        let operators = file.operators.into_iter().map(limits).collect::<Result<_, ProfileError>>()?;
        Ok(Self { name: file.name, operators, outside: file.outside })
    }

    /// What becomes of a case that needs this.
    pub fn standing(&self, features: &Features) -> Standing {
        let Some(limits) = self.operators.get(&features.operator) else {
            return Standing::Unsupported(format!("{} is not in the profile", features.operator.name()));
        };
        match (limits.exceeded(features), self.outside) {
            (None, _) => Standing::Within,
            (Some(reason), Outside::Refuse) => Standing::MustRefuse(reason),
            (Some(reason), Outside::Skip) => Standing::Unsupported(reason),
        }
    }
}

impl Limits {
    fn read(page: OperatorPage, keys: BTreeMap<String, Value>) -> Result<Self, ProfileError> {
        let (operator, known) = (page.name(), numbers(page));
        let mut limits = Self::default();
        for (name, value) in keys {
            if TYPES.contains(&name.as_str()) {
                let names: Vec<String> = serde_yaml::from_value(value).map_err(|cause| ProfileError::Limit {
                    operator,
                    name: name.clone(),
                    expected: "a list of types",
                    cause,
                })?;
                let element = |value: String| {
                    ElementType::from_name(&value).ok_or_else(|| ProfileError::Type {
                        operator,
                        name: name.clone(),
                        value,
                    })
                };
                if names.is_empty() {
                    return Err(ProfileError::Nothing { operator, name });
                }
                let types = names.into_iter().map(element).collect::<Result<_, _>>()?;
                limits.types.insert(name, types);
            } else if known.contains(&name.as_str()) {
                let numbers: Numbers = serde_yaml::from_value(value).map_err(|cause| ProfileError::Limit {
                    operator,
                    name: name.clone(),
                    expected: "a list of numbers or a range {min: .., max: ..}",
                    cause,
                })?;
                if numbers.is_empty() {
                    return Err(ProfileError::Nothing { operator, name });
                }
                limits.numbers.insert(name, numbers);
            } else {
                let known = TYPES.into_iter().chain(known).collect();
                return Err(ProfileError::Key { operator, name, known });
            }
        }
        Ok(limits)
    }

    /// The first limit that a case exceeds.
    fn exceeded(&self, features: &Features) -> Option<String> {
        let types = self.types.iter().find_map(|(name, allowed)| {
            let element = features.types.get(name.as_str()).filter(|element| !allowed.contains(element))?;
            Some(format!("{name} is {element}, and the profile has {}", list(allowed)))
        });
        types.or_else(|| {
            self.numbers.iter().find_map(|(name, allowed)| {
                let number = features.numbers.get(name.as_str()).filter(|number| !allowed.contains(**number))?;
                Some(format!("{name} is {number}, and the profile has {allowed}"))
            })
        })
    }
}

impl Numbers {
    /// Whether it allows nothing.
    fn is_empty(&self) -> bool {
        match self {
            Self::List(numbers) => numbers.is_empty(),
            Self::Range(Range { min, max }) => min.zip(*max).is_some_and(|(min, max)| min > max),
        }
    }

    fn contains(&self, number: i64) -> bool {
        match self {
            Self::List(numbers) => numbers.contains(&number),
            Self::Range(Range { min, max }) => {
                min.is_none_or(|min| min <= number) && max.is_none_or(|max| number <= max)
            }
        }
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
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
    if !known.contains(&"head_dim") {
        known.push("head_dim");
    }
    known
}

fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}
