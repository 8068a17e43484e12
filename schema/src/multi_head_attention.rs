//! `MultiHeadAttention`: each sequence's queries attend over its packed keys and values.

use crate::ElementType;

/// The operator's name in a graph.
pub const NAME: &str = "MultiHeadAttention";

/// The names of the operator's inputs, by position.
pub const INPUTS: [&str; 9] =
    ["query", "key", "value", "seqstarts", "kvstarts", "decoding_batches", "max_seqlen", "max_kvlen", "attn_mask"];

/// The names of the operator's outputs, by position.
pub const OUTPUTS: [&str; 1] = ["attn_output"];

/// The name of the output behind [`OUTPUTS`] that a call may leave out, float32 of shape (Hq, `kvstarts[B]`): an
/// extension.
pub const MASS: &str = "attention_mass";

/// Legal types of `query`, of the keys and values, of `attn_mask` and of `attn_output`.
pub const T1: [ElementType; ElementType::FLOATS.len()] = ElementType::FLOATS;

/// The operator as data: the text of `multi_head_attention.yaml`.
pub const SCHEMA: &str = include_str!("../multi_head_attention.yaml");
