//! The operators by name: domains, inputs and outputs, and their schemas as data.

use crate::ElementType;

/// The operator's name in a graph.
pub const NAME: &str = "KeyValueCache";

/// The domains that the operators are registered in: the one of current exports, then the one
/// of exports before 2024-04-22.
pub const DOMAINS: [&str; 2] = ["opmx.dynamic_batching", "pmx.dynamic_batching"];

/// The operators' version in both [`DOMAINS`].
pub const VERSION: u32 = 1;

/// The names of the operator's inputs, by position.
pub const INPUTS: [&str; 10] = [
    "current_key",
    "current_value",
    "seqstarts",
    "kvstarts",
    "cachestarts",
    "start_pos",
    "max_seqlen",
    "max_kvlen",
    "cache",
    "scale",
];

/// The names of the operator's outputs, by position.
pub const OUTPUTS: [&str; 2] = ["key", "value"];

/// The operator as data: the text of `key_value_cache.yaml`.
pub const SCHEMA: &str = include_str!("../key_value_cache.yaml");

/// An operator, and what graphs call it, its inputs and its outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperatorKind {
    /// `KeyValueCache` of dynamic batching.
    KeyValueCache,
    /// `KeyValueCache` of static batching.
    StaticKeyValueCache,
    /// `MultiHeadAttention`.
    MultiHeadAttention,
    /// `MultiHeadCacheAttention`.
    MultiHeadCacheAttention,
    /// `QuantizedMatMul`.
    QuantizedMatMul,
    /// `QuantizedGather`.
    QuantizedGather,
}

impl OperatorKind {
    /// Every operator.
    pub const ALL: [Self; 6] = [
        Self::KeyValueCache,
        Self::MultiHeadAttention,
        Self::MultiHeadCacheAttention,
        Self::StaticKeyValueCache,
        Self::QuantizedMatMul,
        Self::QuantizedGather,
    ];

    /// The operator's name in a graph.
    pub const fn name(self) -> &'static str {
        match self {
            Self::KeyValueCache | Self::StaticKeyValueCache => NAME,
            Self::MultiHeadAttention => multi_head_attention::NAME,
            Self::MultiHeadCacheAttention => multi_head_cache_attention::NAME,
            Self::QuantizedMatMul => quantized_matmul::NAME,
            Self::QuantizedGather => quantized_gather::NAME,
        }
    }

    /// The domains the operator is registered in.
    pub const fn domains(self) -> &'static [&'static str] {
        match self {
            Self::KeyValueCache | Self::MultiHeadAttention | Self::MultiHeadCacheAttention => &DOMAINS,
            Self::StaticKeyValueCache => &static_key_value_cache::DOMAINS,
            Self::QuantizedMatMul | Self::QuantizedGather => &quantized_matmul::DOMAINS,
        }
    }

    /// The names of the inputs, by position.
    pub const fn inputs(self) -> &'static [&'static str] {
        match self {
            Self::KeyValueCache => &INPUTS,
            Self::StaticKeyValueCache => &static_key_value_cache::INPUTS,
            Self::MultiHeadAttention => &multi_head_attention::INPUTS,
            Self::MultiHeadCacheAttention => &multi_head_cache_attention::INPUTS,
            Self::QuantizedMatMul => &quantized_matmul::INPUTS,
            Self::QuantizedGather => &quantized_gather::INPUTS,
        }
    }

    /// The names of the outputs that every node has, by position.
    pub const fn outputs(self) -> &'static [&'static str] {
        match self {
            Self::KeyValueCache | Self::StaticKeyValueCache => &OUTPUTS,
            Self::MultiHeadAttention | Self::MultiHeadCacheAttention => &multi_head_attention::OUTPUTS,
            Self::QuantizedMatMul | Self::QuantizedGather => &quantized_matmul::OUTPUTS,
        }
    }

    /// The output after these that a node may leave out, of float32.
    pub const fn optional_output(self) -> Option<&'static str> {
        match self {
            Self::MultiHeadAttention | Self::MultiHeadCacheAttention => Some(multi_head_attention::MASS),
            _ => None,
        }
    }

    /// Whether a node may leave out the input of this name.
    pub fn is_optional(input: &str) -> bool {
        matches!(Role::of(input), Role::Scale | Role::Mask) || matches!(input, "minima" | "bias")
    }

    /// Whether the host reads the input of this name also in a call on a device: bounds and counts are checked;
    /// `kvstarts[B]`, in static batching `start_pos`, is the number of keys, unless the shape of `key` tells it.
    /// Products with quantized matrices are made on the host alone.
    pub fn is_on_host(self, input: &str) -> bool {
        match input {
            "max_seqlen" | "max_kvlen" | "decoding_batches" => true,
            "kvstarts" => self != Self::MultiHeadAttention,
            "start_pos" => self == Self::StaticKeyValueCache,
            _ => matches!(self, Self::QuantizedMatMul | Self::QuantizedGather),
        }
    }
}

/// What an input is for. Its name tells: every operator calls the same thing by the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Queries, keys or values, of T1.
    Rows,
    /// `cache`, of T2, which the operator writes.
    Cache,
    /// `scale`, of T3, which the operator writes.
    Scale,
    /// `attn_mask` and `head_sink`: of T1, or of any type if it has no elements.
    Mask,
    /// Indices, bounds and counts.
    Index,
    /// What is of float32 in every node of `QuantizedMatMul` and `QuantizedGather`.
    Floats,
    /// Codes of a quantized matrix.
    Panels,
}

impl Role {
    /// What the input of this name is for.
    pub fn of(input: &str) -> Self {
        match input {
            "query" | "key" | "value" | "current_key" | "current_value" => Self::Rows,
            "cache" => Self::Cache,
            "scale" => Self::Scale,
            "attn_mask" | "head_sink" => Self::Mask,
            "x" | "scales" | "minima" | "bias" => Self::Floats,
            "panels" => Self::Panels,
            _ => Self::Index,
        }
    }

    /// The types that some operator takes, legal together or not.
    pub fn types(self) -> &'static [ElementType] {
        match self {
            Self::Rows => &ElementType::T1,
            Self::Mask => &multi_head_attention::T1,
            Self::Cache => &ElementType::T2,
            Self::Scale => &ElementType::T3,
            Self::Index => &[ElementType::Int64],
            Self::Floats => &[ElementType::Float32],
            Self::Panels => &[ElementType::UInt8],
        }
    }

    /// Whether the operator writes the input.
    pub fn is_state(self) -> bool {
        matches!(self, Self::Cache | Self::Scale)
    }
}

/// `KeyValueCache` of static batching: all sequences of a batch have the same length and the same position.
pub mod static_key_value_cache {
    pub use super::{NAME, OUTPUTS, VERSION};

    /// The domains that the operator is registered in: the one of current exports, then the one of exports
    /// before 2024-04-22.
    pub const DOMAINS: [&str; 2] = ["opmx", "pmx"];

    /// The names of the operator's inputs, by position.
    pub const INPUTS: [&str; 5] = ["current_key", "current_value", "start_pos", "cache", "scale"];

    /// The operator as data: the text of `static_key_value_cache.yaml`.
    pub const SCHEMA: &str = include_str!("../static_key_value_cache.yaml");
}

/// `MultiHeadAttention`: each sequence's queries attend over its packed keys and values.
pub mod multi_head_attention {
    use crate::ElementType;

    /// The operator's name in a graph.
    pub const NAME: &str = "MultiHeadAttention";

    /// The names of the operator's inputs, by position.
    pub const INPUTS: [&str; 10] = [
        "query",
        "key",
        "value",
        "seqstarts",
        "kvstarts",
        "decoding_batches",
        "max_seqlen",
        "max_kvlen",
        "attn_mask",
        "head_sink",
    ];

    /// The names of the operator's outputs, by position.
    pub const OUTPUTS: [&str; 1] = ["attn_output"];

    /// The name of the output after [`OUTPUTS`] that a call may leave out, float32 of shape (Hq, `kvstarts[B]`): an
    /// extension.
    pub const MASS: &str = "attention_mass";

    /// Legal types of `query`, of the keys and values, of `attn_mask`, `head_sink` and `attn_output`.
    pub const T1: [ElementType; ElementType::FLOATS.len()] = ElementType::FLOATS;

    /// The operator as data: the text of `multi_head_attention.yaml`.
    pub const SCHEMA: &str = include_str!("../multi_head_attention.yaml");
}

/// `MultiHeadCacheAttention`: stores the current keys and values as `KeyValueCache` does, then attends over the cache.
pub mod multi_head_cache_attention {
    use crate::TypeCombination;

    pub use super::multi_head_attention::{MASS, OUTPUTS, T1};

    /// The operator's name in a graph.
    pub const NAME: &str = "MultiHeadCacheAttention";

    /// The names of the operator's inputs, by position.
    pub const INPUTS: [&str; 14] = [
        "query",
        "current_key",
        "current_value",
        "seqstarts",
        "kvstarts",
        "cachestarts",
        "start_pos",
        "decoding_batches",
        "max_seqlen",
        "max_kvlen",
        "cache",
        "scale",
        "attn_mask",
        "head_sink",
    ];

    /// The operator as data: the text of `multi_head_cache_attention.yaml`.
    pub const SCHEMA: &str = include_str!("../multi_head_cache_attention.yaml");

    /// The specification's legal combinations of types: rows of `KeyValueCache` whose T1 has scores.
    pub fn combinations() -> impl Iterator<Item = TypeCombination> {
        all_combinations().filter(|row| TypeCombination::LEGAL.contains(row))
    }

    /// Every legal combination of types: rows of `KeyValueCache`, with extensions, whose T1 has scores.
    pub fn all_combinations() -> impl Iterator<Item = TypeCombination> {
        TypeCombination::all().filter(|row| T1.contains(&row.t1))
    }
}

/// `QuantizedMatMul`: float rows times the transpose of a quantized matrix.
pub mod quantized_matmul {
    /// The operator's name in a graph.
    pub const NAME: &str = "QuantizedMatMul";

    /// The domain of the operators that are this project's own.
    pub const DOMAINS: [&str; 1] = ["kvcache_ops"];

    /// The names of the operator's inputs, by position.
    pub const INPUTS: [&str; 5] = ["x", "panels", "scales", "minima", "bias"];

    /// The names of the operator's outputs, by position.
    pub const OUTPUTS: [&str; 1] = ["y"];

    /// The operator as data: the text of `quantized_matmul.yaml`.
    pub const SCHEMA: &str = include_str!("../quantized_matmul.yaml");
}

/// `QuantizedGather`: rows of a quantized matrix.
pub mod quantized_gather {
    pub use super::quantized_matmul::{DOMAINS, OUTPUTS};

    /// The operator's name in a graph.
    pub const NAME: &str = "QuantizedGather";

    /// The names of the operator's inputs, by position.
    pub const INPUTS: [&str; 4] = ["indices", "panels", "scales", "minima"];

    /// The operator as data: the text of `quantized_gather.yaml`.
    pub const SCHEMA: &str = include_str!("../quantized_gather.yaml");
}
