//! What a call reads.

use crate::tensor::TensorRef;

/// The inputs of a call of static batching that are only read. Everything is checked when a call is made. A call on a
/// device reads those of type `T` on the device.
#[derive(Debug, Clone)]
pub struct StaticInputs<'a, T = TensorRef<'a>> {
    /// T1, shape (B, S, H, Dh).
    pub current_key: T,
    /// T1, shape (B, S, H, Dh).
    pub current_value: T,
    /// int64, a scalar or of shape (1), in memory of the host: the position of every sequence's first current token.
    pub start_pos: TensorRef<'a>,
}
