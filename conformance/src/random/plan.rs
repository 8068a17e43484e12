//! Legal calls of any size: what they are made of is planned first, so that a test may choose parts of it.

use kvcache_schema::{CacheDims, CacheLayout, CacheMode, ElementType, QuantBit, STATIC_SCALES, TypeCombination};

use super::unstructured::Unstructured;
use super::values::{Choice, bits, scales, values};
use crate::case::{Call, FloatValues, Operator, Tensors};
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

/// The lengths of groups: a vector's, and lengths around it.
pub(super) fn group(unstructured: &mut Unstructured, quant_bit: i64) -> usize {
    let group = match unstructured.below(9) {
        large @ 1.. => [16, 24, 32, 64, 128, 130, 136, 258][large - 1],
        _ => unstructured.within(1, 9),
    };
    if quant_bit == 4 { group.next_multiple_of(2) } else { group }
}

pub(super) fn head_dim(types: TypeCombination, inner: usize, group: usize, most: usize) -> usize {
    match types.t3 {
        Some(_) => inner.min(most / group) * group,
        // Any length, or whole cache lines.
        None => inner * if group.is_multiple_of(2) { 8 } else { 3 },
    }
}

/// The values of calls with heads of `group` elements that share a scale: few tensors have some that are not finite,
/// which propagate to their group.
pub(super) fn choice(unstructured: &mut Unstructured, t2: ElementType, group: usize) -> Choice {
    let qmax = QuantBit::of_element(t2).map_or(127.0, |coding| coding.qmax().into());
    Choice { group, qmax, non_finite: unstructured.one_in(4), moderate: false }
}

/// The index inputs, but for `cachestarts`, of sequences of so many past and current tokens.
pub fn index_inputs(sequences: &[(usize, usize)]) -> Tensors {
    let numbers = |numbers: Vec<i64>| Tensor::of_indices(&numbers, &[numbers.len()]);
    let (new, all): (Vec<_>, Vec<_>) = sequences.iter().map(|&(past, new)| (new as i64, (past + new) as i64)).unzip();
    let starts = |lens: &[i64]| {
        let ends = lens.iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        numbers(std::iter::once(0).chain(ends).collect())
    };
    let longest = |lens: &[i64]| numbers(vec![lens.iter().copied().max().unwrap_or(0)]);
    Tensors::from([
        ("seqstarts", starts(&new)),
        ("kvstarts", starts(&all)),
        ("start_pos", numbers(sequences.iter().map(|&(past, _)| past as i64).collect())),
        ("max_seqlen", longest(&new)),
        ("max_kvlen", longest(&all)),
    ])
}

impl Plan {
    /// A plan of fewer than five sequences with fewer past and current tokens than `tokens`, and heads of up to
    /// `max_inner` groups.
    pub fn draw(unstructured: &mut Unstructured, max_inner: usize, tokens: usize) -> Self {
        let types = unstructured.pick(&TypeCombination::LEGAL);
        let num_layer = unstructured.within(1, 3);
        Self {
            types,
            layout: unstructured.pick(&CacheLayout::ALL),
            mode: unstructured.pick(&CacheMode::ALL),
            num_heads: unstructured.below(4),
            inner: unstructured.below(max_inner + 1),
            group: group(unstructured, types.quant_bit),
            max_head_dim: 300,
            num_repeat: unstructured.within(1, 4),
            num_layer,
            layer_idx: unstructured.below(num_layer),
            page_size: unstructured.within(1, 8),
            sequences: (0..unstructured.below(5))
                .map(|_| (unstructured.below(tokens), unstructured.below(tokens)))
                .collect(),
            moderate: false,
        }
    }

    /// A plan of small calls, but for one in thirty-two: what is right for few heads or short groups may be wrong for
    /// many.
    pub(super) fn small(unstructured: &mut Unstructured) -> Self {
        let mut plan = Self::draw(unstructured, 3, 9);
        let is_large = unstructured.one_in(32);
        plan.num_heads = if is_large { unstructured.within(1, 12) } else { plan.num_heads.max(1) };
        plan.inner = plan.inner.max(1);
        if !is_large {
            let group = unstructured.within(1, 8);
            plan.group = if plan.types.quant_bit == 4 { group.next_multiple_of(2) } else { group };
        }
        plan
    }

    /// As many tokens as a small call has, and now and then more.
    pub(super) fn draw_sequences(&mut self, unstructured: &mut Unstructured) {
        let tokens = match unstructured.below(48) {
            0 => 150,
            1..12 => 25,
            _ => 7,
        };
        let batch = if unstructured.one_in(24) { unstructured.within(5, 12) } else { unstructured.below(5) };
        self.sequences = (0..batch).map(|_| (unstructured.below(tokens), unstructured.below(tokens))).collect();
    }

    fn choice(&self, unstructured: &mut Unstructured) -> Choice {
        match choice(unstructured, self.types.t2, self.group) {
            choice if self.moderate => Choice { non_finite: false, moderate: true, ..choice },
            choice => choice,
        }
    }

    fn head_dim(&self) -> usize {
        head_dim(self.types, self.inner, self.group, self.max_head_dim)
    }

    /// The inputs of a call as planned, and the slots that its cache has at least. Sequences that store lie apart, in
    /// random order, with gaps; of the others some read whatever is there.
    pub(super) fn inputs(&self, unstructured: &mut Unstructured) -> (Tensors, usize) {
        let (cachestarts, max_t) = match self.mode {
            CacheMode::Offset => self.offsets(unstructured),
            CacheMode::Paged => self.pages(unstructured),
        };
        let choice = self.choice(unstructured);
        let mut inputs = index_inputs(&self.sequences);
        for bound in ["max_seqlen", "max_kvlen"] {
            let exact = inputs[bound].indices()[0];
            let value = unstructured.pick(&[exact, exact, exact, exact + 1, exact + 60, i64::MAX]);
            inputs.insert(bound, Tensor::of_indices(&[value], unstructured.pick(&[&[][..], &[1][..]])));
        }
        let shape = [self.sequences.iter().map(|&(_, current)| current).sum(), self.num_heads, self.head_dim()];
        // Where bytes are copied they may be any.
        let copies = self.types.t1 == self.types.t2 && !self.moderate && unstructured.one_in(3);
        let unstructured = &mut unstructured.fork();
        let mut current = || match copies {
            true => bits(unstructured, self.types.t1, &shape),
            false => values(unstructured, self.types.t1, &shape, choice),
        };
        inputs.extend([("current_key", current()), ("current_value", current()), ("cachestarts", cachestarts)]);
        (inputs, max_t)
    }

    /// A call as planned.
    pub fn call(&self, unstructured: &mut Unstructured) -> Call {
        let (inputs, max_t) = self.inputs(unstructured);
        self.planned(unstructured, inputs, max_t)
    }

    /// A call, and a cache of that many slots.
    pub(super) fn planned(&self, unstructured: &mut Unstructured, inputs: Tensors, max_t: usize) -> Call {
        let &Self { types, layout, num_heads, num_layer, .. } = self;
        let dims = CacheDims { max_t, num_layer, num_heads, inner: self.head_dim() };
        let cache = layout.shape(dims);
        let choice = self.choice(unstructured);
        let unstructured = &mut unstructured.fork();
        let static_scales = types.t2 == ElementType::Float8E4M3Fn && unstructured.one_in(2);
        let scale = match static_scales {
            true => [num_layer, 2, num_heads].map(|len| if unstructured.one_in(3) { 1 } else { len }).to_vec(),
            false => layout.shape(CacheDims { inner: self.head_dim() / self.group, ..dims }).to_vec(),
        };
        let set = [
            ("num_layer", num_layer as i64),
            ("layer_idx", self.layer_idx as i64),
            ("quant_bit", types.quant_bit),
            ("quant_group", self.group as i64),
            ("num_repeat", self.num_repeat as i64),
            ("cache_mode", self.mode.code()),
            ("cache_layout", layout.code()),
            ("page_size", self.page_size as i64),
            ("quant_type", if static_scales { STATIC_SCALES } else { types.quant_type() }),
            ("quant_rotation", 0),
        ];
        Call {
            operator: Operator::KeyValueCache,
            attributes: set.into_iter().collect(),
            floats: FloatValues::new(),
            inputs,
            cache: Some(match types.t3 {
                Some(_) => bits(unstructured, types.t2, &cache),
                None => values(unstructured, types.t2, &cache, choice),
            }),
            scale: types.t3.map(|t3| match self.moderate {
                true => values(unstructured, t3, &scale, choice),
                false => scales(unstructured, t3, &scale),
            }),
        }
    }

    /// A start for each sequence, and the slots of the cache.
    fn offsets(&self, unstructured: &mut Unstructured) -> (Tensor, usize) {
        let mut order: Vec<_> = (0..self.sequences.len()).collect();
        unstructured.fork().shuffle(&mut order);
        let (mut starts, mut max_t) = (vec![0; order.len()], 0);
        for b in order {
            max_t += unstructured.below(3);
            starts[b] = max_t as i64;
            max_t += self.sequences[b].0 + self.sequences[b].1;
        }
        max_t += unstructured.below(3);
        for (start, (past, current)) in starts.iter_mut().zip(&self.sequences) {
            if *current == 0 && unstructured.one_in(2) {
                *start = unstructured.below(max_t - past + 1) as i64;
            }
        }
        (Tensor::of_indices(&starts, &[starts.len()]), max_t)
    }

    /// Pages for each sequence, unaligned, with anything after the last used one; some have the first pages of the
    /// first sequence, as far as both only read them.
    fn pages(&self, unstructured: &mut Unstructured) -> (Tensor, usize) {
        let used = |&(past, current): &(usize, usize)| (past + current).div_ceil(self.page_size);
        let max_p = self.sequences.iter().map(used).max().unwrap_or(0) + unstructured.below(3);
        let num_pages: usize = self.sequences.iter().map(used).sum();
        let shift = unstructured.below(3);
        let mut starts: Vec<_> = (0..num_pages).map(|p| (shift + p * self.page_size) as i64).collect();
        unstructured.fork().shuffle(&mut starts);
        let filler = unstructured.pick(&[-1, -1, 0, i64::MIN, i64::MAX]);
        let mut table = vec![filler; self.sequences.len() * max_p];
        for (b, sequence) in self.sequences.iter().enumerate() {
            for p in 0..used(sequence) {
                table[b * max_p + p] = starts.pop().unwrap_or_default();
            }
            let common = self.sequences[0].0.min(sequence.0) / self.page_size;
            if b > 0 && unstructured.one_in(2) {
                table.copy_within(..unstructured.below(common + 1), b * max_p);
            }
        }
        let max_t = shift + num_pages * self.page_size;
        for (b, sequence) in self.sequences.iter().enumerate().filter(|(_, (_, current))| *current == 0) {
            if unstructured.one_in(2) {
                let start = || unstructured.below(max_t - self.page_size + 1) as i64;
                table[b * max_p..][..used(sequence)].fill_with(start);
            }
        }
        (Tensor::of_indices(&table, &[self.sequences.len(), max_p]), max_t)
    }
}
