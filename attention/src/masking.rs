//! The keys that a query sees, and the biases of its scores.

use std::ops::Range;

use kvcache_kernels::read_floats;
use kvcache_schema::ElementType;

use crate::problem::{AttentionGeometry, Mask};

/// The keys of sequence `b` that query `i` of `n` may see of `m`: all, or, under a causal mask or ALiBi, the keys up to
/// its own position, which is aligned at the end; of these no more than the window has. `attn_mask` may forbid more.
pub fn visible_keys(geometry: &AttentionGeometry, b: usize, n: usize, m: usize, i: usize) -> Range<usize> {
    let causal = geometry.is_causal && n > 1 && b >= geometry.decoding_batches;
    let own_end = (m + i + 1).saturating_sub(n);
    let end = if causal || geometry.is_alibi { own_end } else { m };
    geometry.local_window_size.map_or(0, |window| own_end.saturating_sub(window))..end
}

/// ALiBi's slope of each query head: with c the largest power of two that is at most `num_heads`, `2^(-8k/c)` for k = 1
/// to c, then `2^(-4k/c)` for k = 1, 3, 5 and so on. Each is rounded to float32 once.
pub fn alibi_slopes(num_heads: usize) -> Vec<f32> {
    let Some(log) = num_heads.checked_ilog2() else { return Vec::new() };
    let c = 1usize << log;
    let power = |numerator: usize| (-(numerator as f64) / c as f64).exp2() as f32;
    let first = (1..=c).map(|k| power(8 * k));
    first.chain((1..).step_by(2).map(|k| power(4 * k))).take(num_heads).collect()
}

/// `attn_mask`, whose rows are read within a sequence's block alone.
pub(crate) struct MaskRows<'a> {
    bytes: &'a [u8],
    mask: Mask,
    rows: usize,
    t1: ElementType,
}

impl<'a> MaskRows<'a> {
    /// The mask whose planes have that many rows.
    pub(crate) fn new(bytes: &'a [u8], mask: Mask, rows: usize, t1: ElementType) -> Self {
        Self { bytes, mask, rows, t1 }
    }

    /// Reads the row of a query for head `h`: its columns from `start` on.
    pub(crate) fn read(&self, h: usize, token: usize, start: usize, values: &mut [f32]) {
        let plane = if self.mask.per_head { h } else { 0 };
        let at = (plane * self.rows + token) * self.mask.width + start;
        let size = self.t1.byte_len(1);
        read_floats(self.t1, &self.bytes[at * size..], values);
    }
}
