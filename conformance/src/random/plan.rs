//! Legal calls of any size: what they are made of is planned first, so that a test may choose parts of it.
//! And nodes, as random cases of both operators are made on them.

use kvcache_schema::{
    Attributes, CacheDims, CacheLayout, CacheMode, ElementType, QuantBit, STATIC_SCALES, TypeCombination,
};

use super::entropy::{Choice, Entropy, bits, indices, scales, values};
use crate::case::{StepInputs, Types};
use crate::tensor::Tensor;

#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the fields are the operator's attributes and dimensions")]
pub struct Plan {
    pub types: TypeCombination,
    pub layout: CacheLayout,
    pub mode: CacheMode,
    pub num_heads: usize,
    /// Groups in a head; elements, without quantization.
    pub inner: usize,
    pub group: usize,
    /// Elements in a quantized head, at most.
    pub max_head_dim: usize,
    pub num_repeat: usize,
    pub num_layer: usize,
    pub layer_idx: usize,
    pub page_size: usize,
    /// Past and current tokens of each sequence.
    pub sequences: Vec<(usize, usize)>,
    /// Whether all values are finite and of ordinary size.
    pub moderate: bool,
}

/// A legal call on a node, and the state before it.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the fields are what a call is given")]
pub struct Planned<A = Attributes, I = StepInputs> {
    pub types: Types,
    pub attributes: A,
    pub inputs: I,
    pub cache: Tensor,
    pub scale: Option<Tensor>,
}

/// The lengths of groups: those of a vector, and around them.
pub(super) fn group(entropy: &mut Entropy, quant_bit: i64) -> usize {
    let group = match entropy.below(9) {
        large @ 1.. => [16, 24, 32, 64, 128, 130, 136, 258][large - 1],
        _ => entropy.within(1, 9),
    };
    if quant_bit == 4 { group.next_multiple_of(2) } else { group }
}

pub(super) fn head_dim(types: TypeCombination, inner: usize, group: usize, most: usize) -> usize {
    match types.t3 {
        Some(_) => inner.min(most / group) * group,
        // Of all lengths, and of those that are whole cache lines.
        None => inner * if group.is_multiple_of(2) { 8 } else { 3 },
    }
}

/// The values of calls with heads of `group` elements that share a scale: few tensors have some that are not finite,
/// which propagate to their group.
pub(super) fn choice(entropy: &mut Entropy, types: TypeCombination, group: usize) -> Choice {
    let qmax = QuantBit::of_element(types.t2).map_or(127.0, |coding| coding.qmax().into());
    Choice { group, qmax, non_finite: entropy.one_in(4), moderate: false }
}

impl Plan {
    /// A plan of fewer than five sequences with fewer past and current tokens than `tokens`, and heads of up to
    /// `max_inner` groups.
    pub fn draw(entropy: &mut Entropy, max_inner: usize, tokens: usize) -> Self {
        let types = entropy.pick(&TypeCombination::LEGAL);
        let num_layer = entropy.within(1, 3);
        Self {
            types,
            layout: entropy.pick(&CacheLayout::ALL),
            mode: entropy.pick(&CacheMode::ALL),
            num_heads: entropy.below(4),
            inner: entropy.below(max_inner + 1),
            group: group(entropy, types.quant_bit),
            max_head_dim: 300,
            num_repeat: entropy.within(1, 4),
            num_layer,
            layer_idx: entropy.below(num_layer),
            page_size: entropy.within(1, 8),
            sequences: (0..entropy.below(5)).map(|_| (entropy.below(tokens), entropy.below(tokens))).collect(),
            moderate: false,
        }
    }

    /// A call as planned, of sequences that lie apart: in random order, with gaps.
    pub fn call(&self, entropy: &mut Entropy) -> Planned {
        let &Self { types, layout, num_heads, group, num_layer, .. } = self;
        let head_dim = head_dim(types, self.inner, group, self.max_head_dim);
        let (cachestarts, max_t) = match self.mode {
            CacheMode::Offset => self.offsets(entropy),
            CacheMode::Paged => self.pages(entropy),
        };
        let choice = match choice(entropy, types, group) {
            choice if self.moderate => Choice { non_finite: false, moderate: true, ..choice },
            choice => choice,
        };
        let dims = CacheDims { max_t, num_layer, num_heads, inner: head_dim };
        let starts = |len: &dyn Fn(&(usize, usize)) -> usize| {
            let mut starts = vec![0];
            self.sequences.iter().for_each(|sequence| starts.push(starts[starts.len() - 1] + len(sequence) as i64));
            indices(&[starts.len()], &starts)
        };
        let current = [self.sequences.iter().map(|&(_, current)| current).sum(), num_heads, head_dim];
        let start_pos: Vec<_> = self.sequences.iter().map(|&(past, _)| past as i64).collect();
        let bound = || indices(&[], &[self.sequences.iter().map(|&(past, new)| past + new).max().unwrap_or(0) as i64]);
        let cache = layout.shape(dims);
        let entropy = &mut entropy.fork();
        let static_scales = types.t2 == ElementType::Float8E4M3Fn && entropy.one_in(2);
        let scale = match static_scales {
            true => [num_layer, 2, num_heads].map(|len| if entropy.one_in(3) { 1 } else { len }).to_vec(),
            false => layout.shape(CacheDims { inner: head_dim / group, ..dims }).to_vec(),
        };
        Planned {
            types: Types { t1: types.t1, t2: types.t2, t3: types.t3 },
            attributes: Attributes {
                num_layer: num_layer as i64,
                layer_idx: self.layer_idx as i64,
                quant_bit: types.quant_bit,
                quant_group: group as i64,
                num_repeat: self.num_repeat as i64,
                cache_mode: self.mode.code(),
                cache_layout: layout.code(),
                page_size: self.page_size as i64,
                quant_type: if static_scales { STATIC_SCALES } else { types.quant_type() },
            },
            inputs: StepInputs {
                current_key: values(entropy, types.t1, &current, choice),
                current_value: values(entropy, types.t1, &current, choice),
                seqstarts: starts(&|&(_, current)| current),
                kvstarts: starts(&|&(past, current)| past + current),
                cachestarts,
                start_pos: indices(&[start_pos.len()], &start_pos),
                max_seqlen: bound(),
                max_kvlen: bound(),
            },
            cache: if types.t3.is_some() {
                bits(entropy, types.t2, &cache)
            } else {
                values(entropy, types.t2, &cache, choice)
            },
            scale: types.t3.map(|t3| match self.moderate {
                true => values(entropy, t3, &scale, choice),
                false => scales(entropy, t3, &scale),
            }),
        }
    }

    /// A start for each sequence, and the slots of the cache.
    fn offsets(&self, entropy: &mut Entropy) -> (Tensor, usize) {
        let mut order: Vec<_> = (0..self.sequences.len()).collect();
        entropy.fork().shuffle(&mut order);
        let (mut starts, mut max_t) = (vec![0; order.len()], 0);
        for b in order {
            max_t += entropy.below(3);
            starts[b] = max_t as i64;
            max_t += self.sequences[b].0 + self.sequences[b].1;
        }
        (indices(&[starts.len()], &starts), max_t + entropy.below(3))
    }

    /// Pages for each sequence, unaligned, with -1 behind the last used one; some have the first pages of the first
    /// sequence, as far as both only read them.
    fn pages(&self, entropy: &mut Entropy) -> (Tensor, usize) {
        let used = |&(past, current): &(usize, usize)| (past + current).div_ceil(self.page_size);
        let max_p = self.sequences.iter().map(used).max().unwrap_or(0) + 1;
        let num_pages: usize = self.sequences.iter().map(used).sum();
        let shift = entropy.below(3);
        let mut starts: Vec<_> = (0..num_pages).map(|p| (shift + p * self.page_size) as i64).collect();
        entropy.fork().shuffle(&mut starts);
        let mut table = vec![-1; self.sequences.len() * max_p];
        for (b, sequence) in self.sequences.iter().enumerate() {
            for p in 0..used(sequence) {
                table[b * max_p + p] = starts.pop().unwrap_or_default();
            }
            let common = self.sequences[0].0.min(sequence.0) / self.page_size;
            if b > 0 && entropy.one_in(2) {
                table.copy_within(..entropy.below(common + 1), b * max_p);
            }
        }
        (indices(&[self.sequences.len(), max_p], &table), shift + num_pages * self.page_size)
    }
}

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
