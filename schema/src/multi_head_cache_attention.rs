//! `MultiHeadCacheAttention`: stores the current keys and values as `KeyValueCache` does, then attends over the cache.

use crate::TypeCombination;

pub use super::multi_head_attention::{MASS, OUTPUTS, T1};

/// The operator's name in a graph.
pub const NAME: &str = "MultiHeadCacheAttention";

/// The names of the operator's inputs, by position.
pub const INPUTS: [&str; 13] = [
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
];

/// The operator as data: the text of `multi_head_cache_attention.yaml`.
pub const SCHEMA: &str = include_str!("../multi_head_cache_attention.yaml");

/// The legal combinations of types of the specification: those of `KeyValueCache` whose T1 has scores.
pub fn combinations() -> impl Iterator<Item = TypeCombination> {
    all_combinations().filter(|row| TypeCombination::LEGAL.contains(row))
}

/// Every legal combination of types: those of `KeyValueCache`, with extensions, whose T1 has scores.
pub fn all_combinations() -> impl Iterator<Item = TypeCombination> {
    TypeCombination::all().filter(|row| T1.contains(&row.t1))
}
