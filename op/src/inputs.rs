//! What a call reads: its current tokens, and the indices that say where tokens are.

use crate::tensor::TensorRef;

/// The operator's inputs that are only read. Everything is checked when a call is made.
///
/// On the host all are tensors of the host. A call on a device reads those of type `T` on the device, and takes
/// `kvstarts` as a `K`.
#[derive(Debug, Clone)]
pub struct Inputs<'a, T = TensorRef<'a>, K = TensorRef<'a>> {
    /// T1, shape (`seqstarts[B]`, H, Dh).
    pub current_key: T,
    /// T1, shape (`seqstarts[B]`, H, Dh).
    pub current_value: T,
    /// The lengths, positions and slots of the sequences.
    pub indices: IndexInputs<'a, T, K>,
}

/// The inputs of type int64: the lengths, positions and slots of the sequences of a batch. They are the same for every
/// layer of a step.
///
/// On the host all six are tensors. A call on a device reads the inputs of type `T` on the device, and takes `kvstarts`
/// as a `K`; the bounds are the host's there too.
#[derive(Debug, Clone)]
pub struct IndexInputs<'a, T = TensorRef<'a>, K = TensorRef<'a>> {
    /// Where each sequence's tokens start in the current keys and values, and their total. int64, shape (B + 1).
    pub seqstarts: T,
    /// Where each sequence's tokens start in `key` and `value`, and their total. int64, shape (B + 1).
    pub kvstarts: K,
    /// Each sequence's first slot, or the first slots of its pages. int64, shape (B) or, paged, (B, MaxP).
    pub cachestarts: T,
    /// How many tokens of each sequence the cache holds before this call. int64, shape (B).
    pub start_pos: T,
    /// At least the largest number of current tokens of a sequence. int64, a scalar or of shape (1).
    pub max_seqlen: TensorRef<'a>,
    /// At least the largest number of tokens of a sequence, past and current. int64, a scalar or of shape (1).
    pub max_kvlen: TensorRef<'a>,
}

impl<'a> IndexInputs<'a> {
    /// All of them, with their names.
    pub(crate) fn named(&self) -> [(&'static str, &TensorRef<'a>); 6] {
        [
            ("seqstarts", &self.seqstarts),
            ("kvstarts", &self.kvstarts),
            ("cachestarts", &self.cachestarts),
            ("start_pos", &self.start_pos),
            ("max_seqlen", &self.max_seqlen),
            ("max_kvlen", &self.max_kvlen),
        ]
    }
}
