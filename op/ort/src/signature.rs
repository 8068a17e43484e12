//! What an operator is called, and its inputs and outputs.

use kvcache_op::ElementType;
use kvcache_schema::multi_head_attention;

/// An operator's names.
#[derive(Debug)]
pub(crate) struct Signature {
    pub(crate) name: &'static str,
    pub(crate) domains: [&'static str; 2],
    /// The names of its inputs, by position. The first is of T1.
    pub(crate) inputs: &'static [&'static str],
    /// The names of its outputs, by position. All are of T1 and of one shape.
    pub(crate) outputs: &'static [&'static str],
}

impl Signature {
    /// Whether it writes one of its inputs.
    pub(crate) fn has_state(&self) -> bool {
        self.inputs.iter().any(|input| Role::of(input).is_state())
    }
}

/// What an input is for, which its name tells: every operator calls the same thing by the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Queries, keys or values, of T1.
    Rows,
    /// `cache`, of T2, which the operator writes.
    Cache,
    /// `scale`, of T3, which the operator writes.
    Scale,
    /// `attn_mask`: of T1, or of any type if it has no elements.
    Mask,
    /// Indices, bounds and counts.
    Index,
}

impl Role {
    /// The role of the input of this name.
    pub(crate) fn of(input: &str) -> Self {
        match input {
            "query" | "key" | "value" | "current_key" | "current_value" => Self::Rows,
            "cache" => Self::Cache,
            "scale" => Self::Scale,
            "attn_mask" => Self::Mask,
            _ => Self::Index,
        }
    }

    /// The types that some operator takes, legal together or not.
    pub(crate) fn types(self) -> &'static [ElementType] {
        match self {
            Self::Rows => &ElementType::T1,
            Self::Mask => &multi_head_attention::T1,
            Self::Cache => &ElementType::T2,
            Self::Scale => &ElementType::T3,
            Self::Index => &[ElementType::Int64],
        }
    }

    /// Whether a node may leave the input out.
    pub(crate) fn is_optional(self) -> bool {
        matches!(self, Self::Scale | Self::Mask)
    }

    /// Whether the operator writes the input.
    pub(crate) fn is_state(self) -> bool {
        matches!(self, Self::Cache | Self::Scale)
    }
}
