//! The operators by name: domains, inputs and outputs, and their schemas as data.

/// The operator's name in a graph.
pub const NAME: &str = "KeyValueCache";

/// The domains that the operators are registered in: current exports' and, until 2024-04-22, exports'.
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

/// `KeyValueCache` of static batching: all sequences of a batch have the same length and the same position.
pub mod static_key_value_cache {
    pub use super::{NAME, OUTPUTS, VERSION};

    /// The domains that the operator is registered in: current exports' and, until 2024-04-22, exports'.
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
