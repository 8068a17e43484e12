//! What an element of a tensor stands for.

use std::fmt;

use serde::Serialize;

/// What an element stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Location {
    /// An element of `cache` or `scale`.
    Cache(CacheLocation),
    /// An element of an output.
    Output(OutputLocation),
}

/// What an element of `cache` or `scale` stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheLocation {
    /// The attention layer.
    pub layer: usize,
    /// Whether it belongs to a key or to a value.
    pub part: Part,
    /// The slot.
    pub slot: Slot,
    /// The cache head.
    pub head: usize,
    /// The place within the head.
    #[serde(flatten)]
    pub inner: Inner,
    /// The tokens of the call that have this slot: several, where sequences share it.
    pub owners: Vec<Owner>,
}

/// A key or a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// A key.
    Key,
    /// A value.
    Value,
}

/// A slot of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Slot {
    /// In dynamic batching: a number below MaxT.
    Number(usize),
    /// In static batching.
    Place {
        /// The place along the axis of the sequences, below MaxB.
        row: usize,
        /// The place along the axis of the positions, below MaxS.
        position: usize,
    },
}

/// A place within a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Inner {
    /// In `cache`: an element, below Dh.
    Element(usize),
    /// In `scale`: a group of `quant_group` elements.
    Group(usize),
}

/// A token that has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// The sequence, counted within the batch.
    pub sequence: usize,
    /// The token's position in the sequence.
    pub position: usize,
    /// Whether the token is a current one, whose key and value the call stores.
    pub current: bool,
}

/// What an element of `key`, `value` or `attn_output` stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct OutputLocation {
    /// The sequence, counted within the batch.
    pub sequence: usize,
    /// The token's position in the sequence.
    pub position: usize,
    /// The head of the output.
    pub head: usize,
    /// The cache head (of `MultiHeadAttention`: the key's head) that it comes from.
    pub cache_head: usize,
    /// The element of the head.
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
