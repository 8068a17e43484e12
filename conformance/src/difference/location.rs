//! What an element of a tensor stands for.

use std::fmt;

use serde::Serialize;

/// What an element stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "described by what they hold")]
pub enum Location {
    Cache(CacheLocation),
    Output(OutputLocation),
}

/// What an element of `cache` or `scale` stands for; its owners are the tokens of the call that have its slot, several
/// where sequences share it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "described above")]
pub struct CacheLocation {
    pub layer: usize,
    pub part: Part,
    pub slot: Slot,
    pub head: usize,
    #[serde(flatten)]
    pub inner: Inner,
    pub owners: Vec<Owner>,
}

/// Whether an element belongs to a key or to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "described above")]
pub enum Part {
    Key,
    Value,
}

/// A slot of the cache: a number below MaxT, or in static batching its places along the axes of the sequences (below
/// MaxB) and positions (below MaxS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "described above")]
pub enum Slot {
    Number(usize),
    Place { row: usize, position: usize },
}

/// A place within a head: in `cache` an element, in `scale` a group of `quant_group` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "described above")]
pub enum Inner {
    Element(usize),
    Group(usize),
}

/// A token that has a slot, by its sequence in the batch and its position in that, and whether it is a current one, whose
/// key and value the call stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "described above")]
pub struct Owner {
    pub sequence: usize,
    pub position: usize,
    pub current: bool,
}

/// What an element of `key`, `value` or `attn_output` stands for: an element of a head of a token; that comes from a head
/// of the cache (of `MultiHeadAttention`: of the key).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "described above")]
pub struct OutputLocation {
    pub sequence: usize,
    pub position: usize,
    pub head: usize,
    pub cache_head: usize,
    pub element: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache(location) => location.fmt(f),
            Self::Output(location) => location.fmt(f),
        }
    }
}

impl fmt::Display for CacheLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, part, slot, head, inner, owners } = self;
        let part = match part {
            Part::Key => "key",
            Part::Value => "value",
        };
        write!(f, "layer {layer}, {part}, {slot}, head {head}, {inner}")?;
        match owners.split_first() {
            None => f.write_str(" (the slot of no token of the call)"),
            Some((first, [])) => write!(f, " (the slot of {first})"),
            Some((first, rest)) => write!(f, " (the slot of {first}, and of {} more)", rest.len()),
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(slot) => write!(f, "slot {slot}"),
            Self::Place { row, position } => write!(f, "row {row}, position {position}"),
        }
    }
}

impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Element(element) => write!(f, "element {element}"),
            Self::Group(group) => write!(f, "group {group}"),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence, position, current } = self;
        let when = if *current { "current" } else { "past" };
        write!(f, "sequence {sequence}, position {position}, {when}")
    }
}

impl fmt::Display for OutputLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence, position, head, cache_head, element } = self;
        write!(
            f,
            "sequence {sequence}, position {position}, head {head} (of cache head {cache_head}), element {element}"
        )
    }
}
