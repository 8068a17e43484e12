//! A call's tensors as bytes whose bounds are checked.

use kvcache_kernels::read_floats;

use crate::masking::MaskRows;
use crate::problem::{AttentionGeometry, AttentionIndices, AttentionPointers, AttentionProblem};
use crate::rows::{Rows, bytes};

/// A problem whose tensors are bytes that are checked against their length.
pub(crate) struct Tensors<'a> {
    pub(crate) geometry: AttentionGeometry,
    pub(crate) indices: AttentionIndices<'a>,
    pub(crate) query: &'a [u8],
    pub(crate) mask: Option<MaskRows<'a>>,
    /// The keys and values.
    pub(crate) rows: Rows<'a>,
}

impl AttentionProblem<'_> {
    /// The sink of each query head; none without.
    pub(crate) fn sinks(&self) -> Vec<f32> {
        let AttentionGeometry { num_heads, t1, .. } = *self.geometry();
        let Some(data) = self.pointers().head_sink else { return Vec::new() };
        let mut sinks = vec![0.0; num_heads];
        // SAFETY: assume_checked: `head_sink` has a T1 for each head, which nobody writes.
        read_floats(t1, unsafe { bytes(data, t1.byte_len(num_heads)) }, &mut sinks);
        sinks
    }

    /// The tensors, bounds-checked.
    pub(crate) fn tensors(&self) -> Tensors<'_> {
        let AttentionPointers { query, attn_mask, .. } = self.pointers();
        // SAFETY: assume_checked: each pointer is valid for its tensor's shape; `query` has the shape of the
        // output. Bytes are aligned anywhere. The address of an empty tensor is not used.
        unsafe {
            Tensors {
                geometry: *self.geometry(),
                indices: self.indices(),
                query: bytes(query, self.output_bytes()),
                mask: attn_mask.map(|mask| {
                    let planes = if mask.per_head { self.geometry().num_heads } else { 1 };
                    let plane = self.total_seqlen() * mask.width * self.t1_bytes();
                    MaskRows::new(bytes(mask.data, planes * plane), mask, self.total_seqlen(), self.geometry().t1)
                }),
                rows: Rows::new(self),
            }
        }
    }
}
