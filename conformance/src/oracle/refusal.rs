//! Refusals: the kinds of errors, and a broken rule.

use std::fmt;

/// The kinds of errors that only the attention operators have.
pub const ATTENTION_KINDS: [&str; 3] = ["attention_type", "mask_too_small", "decoding_batches_negative"];

/// The kinds of errors that a call of either `KeyValueCache` can be refused with; the attention operators have them, too.
pub const KINDS: [&str; 21] = [
    "attribute_out_of_range",
    "illegal_types",
    "scale_missing",
    "type_mismatch",
    "legacy_page_table",
    "rank_mismatch",
    "shape_mismatch",
    "head_dim_not_divisible",
    "batch_too_large",
    "starts_not_zero",
    "starts_decrease",
    "starts_total",
    "start_pos_negative",
    "kvlen_mismatch",
    "max_too_small",
    "cache_range",
    "too_many_pages",
    "page_range",
    "write_conflict",
    "position_range",
    "size_overflow",
];

/// A rule that a call breaks. Displayed, it names the input, the sequence where there is one, and the numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of error.
    pub kind: &'static str,
    /// What is wrong, in words.
    pub message: String,
}

impl Refusal {
    /// A broken rule.
    pub fn new(kind: &'static str, message: impl Into<String>) -> Self {
        debug_assert!(KINDS.iter().chain(&ATTENTION_KINDS).any(|known| *known == kind), "no error is of kind {kind}");
        Self { kind, message: message.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
