//! What one query row of one head sees.

/// A query row, and what it sees of its sequence.
#[derive(Clone, Copy)]
pub(crate) struct QueryRow {
    /// So many keys, the first ones, but for the mask.
    pub(crate) visible: usize,
    /// Its row of `attn_mask` from the sequence's first column on, with an element for each visible key; or null.
    pub(crate) mask: *const u8,
    /// ALiBi's slope, and the key at whose distance the bias is 0; the slope is 0 without.
    pub(crate) slope: f32,
    pub(crate) position: i64,
    /// Its elements of `query` and `attn_output`, in bytes.
    pub(crate) at: usize,
}
