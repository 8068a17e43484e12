//! Which keys a query sees, and what is added to its scores.

use kvcache_kernels::read_floats;
use kvcache_schema::ElementType;

use crate::problem::{AttentionGeometry, Mask};

/// How many keys, the first of sequence `b`, the query `i` of `n` may see of `m`: all, or, under a causal mask or
/// ALiBi, those up to its own position, which is aligned at the end. `attn_mask` may forbid more.
pub fn visible_keys(geometry: &AttentionGeometry, b: usize, n: usize, m: usize, i: usize) -> usize {
    let causal = geometry.is_causal && n > 1 && b >= geometry.decoding_batches;
    if causal || geometry.is_alibi { (m + i + 1).saturating_sub(n) } else { m }
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
    /// The mask whose planes have so many rows.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_causal_mask_is_aligned_at_the_end() {
        let geometry = AttentionGeometry {
            batch: 3,
            num_heads: 1,
            num_kv_heads: 1,
            head_dim: 1,
            t1: ElementType::Float32,
            is_causal: true,
            is_alibi: false,
            decoding_batches: 1,
        };
        let seen = |geometry: &AttentionGeometry, b, n: usize, m| -> Vec<_> {
            (0..n).map(|i| visible_keys(geometry, b, n, m, i)).collect()
        };
        assert_eq!(seen(&geometry, 1, 3, 5), [3, 4, 5]);
        assert_eq!(seen(&geometry, 1, 3, 2), [0, 1, 2]);
        assert_eq!(seen(&geometry, 1, 2, 0), [0, 0]);
        assert_eq!(seen(&geometry, 1, 1, 5), [5]);
        assert_eq!(seen(&geometry, 0, 3, 5), [5, 5, 5]);
        assert_eq!(seen(&AttentionGeometry { is_causal: false, ..geometry }, 1, 3, 5), [5, 5, 5]);
        assert_eq!(seen(&AttentionGeometry { is_causal: false, is_alibi: true, ..geometry }, 0, 3, 5), [3, 4, 5]);
    }

    #[test]
    fn slopes_of_powers_of_two_and_of_other_numbers() {
        assert_eq!(alibi_slopes(0), []);
        assert_eq!(alibi_slopes(1), [2f32.powi(-8)]);
        assert_eq!(alibi_slopes(4), [-2, -4, -6, -8].map(|k| 2f32.powi(k)));
        // c is 4: then 2^-1 and 2^-3.
        assert_eq!(alibi_slopes(6), [-2, -4, -6, -8, -1, -3].map(|k| 2f32.powi(k)));
        let slopes = alibi_slopes(16);
        assert_eq!(slopes[0], std::f32::consts::FRAC_1_SQRT_2);
        assert_eq!((slopes.len(), slopes[15]), (16, 2f32.powi(-8)));
    }
}
