//! A node, as random calls of both operators are made on it: its types, attributes and sizes.

use kvcache_schema::{ElementType, TypeCombination};

use super::entropy::Entropy;
use super::values::{Choice, bits, scales, values};
use crate::case::Types;
use crate::tensor::Tensor;

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) types: Types,
    pub(super) quant_bit: i64,
    pub(super) quant_group: usize,
    pub(super) num_layer: usize,
    pub(super) layer_idx: usize,
    pub(super) num_heads: usize,
    pub(super) head_dim: usize,
    pub(super) num_repeat: usize,
    pub(super) choice: Choice,
}

impl Node {
    /// A small node, but for one in thirty-two: what is right for few heads or short groups may be wrong for many.
    pub(super) fn draw(entropy: &mut Entropy) -> Self {
        let TypeCombination { quant_bit, t1, t2, t3 } = entropy.pick(&TypeCombination::LEGAL);
        // Without quantization a scale may be given all the same.
        let t3 = t3.or_else(|| entropy.one_in(6).then(|| entropy.pick(&ElementType::T3)));
        let is_large = entropy.one_in(32);
        let quant_group = match quant_bit {
            _ if is_large => entropy.pick(&[16, 32, 64, 130, 256]),
            4 => 2 * entropy.within(1, 4),
            0 => entropy.within(1, 9),
            _ => entropy.within(1, 8),
        };
        let head_dim = if quant_bit == 0 { entropy.within(1, 9) } else { quant_group * entropy.within(1, 3) };
        let num_layer = entropy.within(1, 3);
        let num_heads = if is_large { entropy.within(1, 12) } else { entropy.within(1, 3) };
        let qmax = if quant_bit == 4 { 7.0 } else { 127.0 };
        Self {
            types: Types { t1, t2, t3 },
            quant_bit,
            quant_group,
            num_layer,
            layer_idx: entropy.below(num_layer),
            num_heads,
            head_dim,
            num_repeat: entropy.pick(&[1, 1, 2, 3, 4]),
            choice: Choice { group: quant_group, qmax, non_finite: entropy.one_in(8), moderate: false },
        }
    }

    pub(super) fn current(&self, entropy: &mut Entropy, shape: &[usize]) -> Tensor {
        let entropy = &mut entropy.fork();
        if self.copies() && entropy.one_in(3) {
            return bits(entropy, self.types.t1, shape);
        }
        values(entropy, self.types.t1, shape, self.choice)
    }

    /// What is in the cache before.
    pub(super) fn cache(&self, entropy: &mut Entropy, shape: &[usize]) -> Tensor {
        let entropy = &mut entropy.fork();
        if self.copies() || self.quant_bit != 0 {
            return bits(entropy, self.types.t2, shape);
        }
        values(entropy, self.types.t2, shape, self.choice)
    }

    /// What is in the scale before, if there is one. `shape` is that of scales that are used.
    pub(super) fn scale(&self, entropy: &mut Entropy, shape: &[usize]) -> Option<Tensor> {
        let (t3, entropy) = (self.types.t3?, &mut entropy.fork());
        // What is not used may have any shape.
        let any = [entropy.below(4), 3];
        Some(scales(entropy, t3, if self.quant_bit == 0 { &any } else { shape }))
    }

    /// Groups of a head, where they are used.
    pub(super) fn groups(&self) -> usize {
        self.head_dim / self.quant_group.max(1)
    }

    fn copies(&self) -> bool {
        self.quant_bit == 0 && self.types.t1 == self.types.t2
    }
}
