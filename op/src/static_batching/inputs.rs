//! What a call reads.

use crate::tensor::TensorRef;

/// The inputs of a call of static batching that are only read. Everything is checked when a call is made.
#[derive(Debug, Clone)]
pub struct StaticInputs<'a> {
    /// T1, shape (B, S, H, Dh).
    pub current_key: TensorRef<'a>,
    /// T1, shape (B, S, H, Dh).
    pub current_value: TensorRef<'a>,
    /// int64, a scalar or of shape (1): the position of every sequence's first current token.
    pub start_pos: TensorRef<'a>,
}
