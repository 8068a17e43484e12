//! `KeyValueCache` of static batching: all sequences of a batch have the same length and the same position.

pub use super::{NAME, OUTPUTS, VERSION};

/// The domains the operator is registered in: that of current exports, and that of exports before 2024-04-23.
pub const DOMAINS: [&str; 2] = ["opmx", "pmx"];

/// The names of the operator's inputs, by position.
pub const INPUTS: [&str; 5] = ["current_key", "current_value", "start_pos", "cache", "scale"];

/// The operator as data: the text of `static_key_value_cache.yaml`.
pub const SCHEMA: &str = include_str!("../static_key_value_cache.yaml");
