//! Sequences whose numbers follow from a seed, attended to in any calls, over a cache that is anywhere.

use std::collections::BTreeMap;

use kvcache_attention::AttentionKernel;
use kvcache_conformance::Tensor;
use kvcache_kernels::write_floats;
use kvcache_schema::{
    AttentionAttributes, Attributes, CacheAttentionAttributes, CacheLayout, CacheMode, ElementType, TypeCombination,
    multi_head_cache_attention,
};
use proptest::prelude::*;

use crate::attention_call::{Inputs, State, attend, cache_shape, load};

/// What a node computes, wherever its cache is. Its numbers follow from `seed`.
#[derive(Debug, Clone)]
pub struct Model {
    pub types: TypeCombination,
    pub attention: AttentionAttributes,
    pub quant_group: i64,
    /// The rank of `attn_mask`, if there is one.
    pub mask: Option<usize>,
    pub seed: u64,
}

/// Where a cache is, and in which order.
#[derive(Debug, Clone)]
pub struct Placement {
    pub layout: CacheLayout,
    pub mode: CacheMode,
    pub page_size: usize,
    pub num_layer: i64,
    pub layer_idx: i64,
    /// Decides which slots are whose.
    pub shuffle: u64,
}

impl Placement {
    /// The first tokens first, one after the other.
    pub const SIMPLE: Self = Self {
        layout: CacheLayout::TokenMajor,
        mode: CacheMode::Offset,
        page_size: 1,
        num_layer: 1,
        layer_idx: 0,
        shuffle: 0,
    };
}

/// Models of all types, with one of these pairs of `num_heads` and `num_kv_heads`, and of `head_dim` and `quant_group`.
pub fn models(heads: Vec<(i64, i64)>, sizes: Vec<(i64, i64)>) -> impl Strategy<Value = Model> {
    let rows: Vec<_> = multi_head_cache_attention::all_combinations().collect();
    let mask = prop::sample::select(vec![None, Some(2), Some(3)]);
    let (rows, heads, sizes) = (prop::sample::select(rows), prop::sample::select(heads), prop::sample::select(sizes));
    (rows, heads, sizes, mask, any::<[bool; 2]>(), any::<u64>()).prop_map(
        |(types, (num_heads, num_kv_heads), (head_dim, quant_group), mask, [is_causal, is_alibi], seed)| {
            let (is_causal, is_alibi) = (is_causal.into(), is_alibi.into());
            let attention = AttentionAttributes { num_heads, head_dim, is_causal, is_alibi, num_kv_heads };
            Model { types, attention, quant_group, mask, seed }
        },
    )
}

/// Caches of any layout and mode.
pub fn placements() -> impl Strategy<Value = Placement> {
    let layouts = prop::sample::select(&CacheLayout::ALL[..]);
    let modes = prop::sample::select(&CacheMode::ALL[..]);
    let layers = prop::sample::select(vec![(1, 0), (3, 0), (3, 1), (3, 2)]);
    (layouts, modes, 1usize..6, layers, any::<u64>()).prop_map(
        |(layout, mode, page_size, (num_layer, layer_idx), shuffle)| Placement {
            layout,
            mode,
            page_size,
            num_layer,
            layer_idx,
            shuffle,
        },
    )
}

/// New tokens of one sequence in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub sequence: usize,
    pub tokens: usize,
    pub decoding: bool,
}

fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |hash: u64, &part| {
        let mixed = (hash ^ part).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) ^ mixed >> 32
    })
}

/// The names of the tensors whose numbers are a sequence's own.
#[derive(Clone, Copy)]
enum Of {
    Query,
    Key,
    Value,
    Mask,
}

impl Model {
    /// A number between -4 and 4. Every fourth sequence has NaN among its keys and values; the one before it has keys
    /// whose score is -inf, with values that are infinite.
    fn number(&self, of: Of, sequence: usize, at: [usize; 3]) -> f32 {
        let at = at.map(|index| index as u64);
        let bits = hash(&[self.seed, of as u64, sequence as u64, at[0], at[1], at[2]]);
        match of {
            Of::Mask if bits.is_multiple_of(5) => f32::NEG_INFINITY,
            Of::Key | Of::Value if sequence % 4 == 3 && bits.is_multiple_of(31) => f32::NAN,
            Of::Key if sequence % 4 == 2 && at[2] == 0 && self.has_infinite_key(sequence, at[0]) => f32::NEG_INFINITY,
            Of::Value if sequence % 4 == 2 && self.has_infinite_key(sequence, at[0]) => f32::INFINITY,
            Of::Query if sequence % 4 == 2 => (bits >> 40) as f32 / (1 << 22) as f32 + 1.0,
            _ => (bits >> 40) as f32 / (1 << 21) as f32 - 4.0,
        }
    }

    fn has_infinite_key(&self, sequence: usize, token: u64) -> bool {
        hash(&[self.seed, sequence as u64, token]).is_multiple_of(7)
    }

    pub fn attributes(&self, placement: &Placement) -> CacheAttentionAttributes {
        CacheAttentionAttributes {
            attention: self.attention.clone(),
            cache: Attributes {
                num_layer: placement.num_layer,
                layer_idx: placement.layer_idx,
                quant_bit: self.types.quant_bit,
                quant_type: self.types.quant_type(),
                quant_group: self.quant_group,
                cache_mode: placement.mode.code(),
                cache_layout: placement.layout.code(),
                page_size: placement.page_size as i64,
                ..Attributes::default()
            },
        }
    }

    fn kv_heads(&self) -> usize {
        self.attention.num_kv_heads as usize
    }

    fn head_dim(&self) -> usize {
        self.attention.head_dim as usize
    }

    /// Makes the calls, in which sequences grow by their parts; gives the rows of each sequence, one after the other.
    pub fn run(&self, kernel: &dyn AttentionKernel, placement: &Placement, calls: &[Vec<Part>]) -> Vec<Vec<u8>> {
        let sequences = calls.iter().flatten().map(|part| part.sequence + 1).max().unwrap_or_default();
        let mut ends = vec![0; sequences];
        calls.iter().flatten().for_each(|part| ends[part.sequence] += part.tokens);
        let (places, max_t) = placement.places(&ends);
        let attributes = self.attributes(placement);
        let mut state = self.state(&attributes, max_t);
        let (mut lengths, mut rows) = (vec![0; sequences], vec![Vec::new(); sequences]);
        for parts in calls {
            let mut parts = parts.clone();
            parts.sort_by_key(|part| !part.decoding);
            let inputs = self.inputs(placement, &places, &lengths, &parts);
            let output = attend(kernel, &attributes, &inputs, &mut state);
            // A quantized value is code times scale, whose product `KeyValueCache` rounds, and attention need not.
            if self.types.t3.is_none() {
                self.compare_with_packed(kernel, &attributes, &inputs, &mut state, &output);
            }
            let row = self.types.t1.byte_len(self.attention.num_heads as usize * self.head_dim());
            let mut bytes = output.bytes();
            for part in parts {
                let (own, rest) = bytes.split_at(part.tokens * row);
                rows[part.sequence].extend_from_slice(own);
                lengths[part.sequence] += part.tokens;
                bytes = rest;
            }
        }
        rows
    }

    /// `MultiHeadAttention` over the keys and values that the cache holds gives the same bits.
    fn compare_with_packed(
        &self,
        kernel: &dyn AttentionKernel,
        attributes: &CacheAttentionAttributes,
        inputs: &Inputs,
        state: &mut State,
        output: &Tensor,
    ) {
        let mut packed = inputs.clone();
        packed.extend(["key", "value"].into_iter().zip(load(attributes, inputs, state)));
        let mut nothing = State { cache: None, scale: None };
        assert!(attend(kernel, attributes, &packed, &mut nothing) == *output, "packed");
    }

    /// A cache of which every byte is 0xff: NaN, or codes whose scales are NaN.
    pub fn state(&self, attributes: &CacheAttentionAttributes, max_t: usize) -> State {
        let filled = |element, inner| {
            let shape = cache_shape(attributes, max_t, self.kv_heads(), inner);
            let mut tensor = Tensor::zeros(element, shape).expect("it fits");
            tensor.bytes_mut().fill(0xff);
            tensor
        };
        State {
            cache: Some(filled(self.types.t2, self.head_dim())),
            scale: self.types.t3.map(|t3| filled(t3, self.head_dim() / self.quant_group as usize)),
        }
    }

    /// A cache of small numbers, or of codes and scales.
    pub fn filled(&self, attributes: &CacheAttentionAttributes, max_t: usize) -> State {
        let mut state = self.state(attributes, max_t);
        let fill = |tensor: &mut Tensor, seed: u64| {
            let number = |i: usize| hash(&[self.seed, seed, i as u64]);
            let float = |i: usize| (number(i) >> 40) as f32 / (1 << 24) as f32;
            let element = tensor.element();
            if element.is_float() {
                let values: Vec<f32> = (0..tensor.bytes().len() / element.align()).map(float).collect();
                return write_floats(element, &values, tensor.bytes_mut());
            }
            // Codes of float8 are below 2, and no NaN.
            let mask = if element == ElementType::Float8E4M3Fn { 0xbf } else { 0xff };
            tensor.bytes_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = number(i) as u8 & mask);
        };
        state.cache.iter_mut().for_each(|cache| fill(cache, 1));
        state.scale.iter_mut().for_each(|scale| fill(scale, 2));
        state
    }

    /// A call of some sequences, of each of which `sizes` says how long it is and how many of its tokens are new: the
    /// node's attributes, the inputs, and a filled cache, where each has room for the longest, in pages that come
    /// backwards.
    pub fn long_call(
        &self,
        placement: &Placement,
        sizes: &[(usize, usize)],
        chosen: &[usize],
    ) -> (CacheAttentionAttributes, Inputs, State) {
        let pages = sizes.iter().map(|&(all, _)| all / placement.page_size + 1).max().unwrap_or(0);
        let stride = pages * placement.page_size;
        let place = |b: usize| match placement.mode {
            CacheMode::Offset => vec![(b * stride) as i64],
            CacheMode::Paged => (0..pages).rev().map(|page| (b * stride + page * placement.page_size) as i64).collect(),
        };
        let places: Vec<_> = (0..sizes.len()).map(place).collect();
        let parts = chosen.iter().map(|&sequence| Part { sequence, tokens: sizes[sequence].1, decoding: false });
        let lengths: Vec<_> = sizes.iter().map(|(all, new)| all - new).collect();
        let inputs = self.inputs(placement, &places, &lengths, &parts.collect::<Vec<_>>());
        let attributes = self.attributes(placement);
        let before = self.filled(&attributes, sizes.len() * stride);
        (attributes, inputs, before)
    }

    /// The inputs of a call of these parts, where the sequences' rows of `cachestarts` are `places`, and so many tokens
    /// are in the cache already.
    pub fn inputs(&self, placement: &Placement, places: &[Vec<i64>], lengths: &[usize], parts: &[Part]) -> Inputs {
        let (heads, kv_heads, head_dim) = (self.attention.num_heads as usize, self.kv_heads(), self.head_dim());
        let tokens: usize = parts.iter().map(|part| part.tokens).sum();
        let rows = |of: Of, heads: usize| {
            let mut values = Vec::new();
            for part in parts {
                for t in lengths[part.sequence]..lengths[part.sequence] + part.tokens {
                    let at = |i: usize| [t, i / head_dim, i % head_dim];
                    values.extend((0..heads * head_dim).map(|i| self.number(of, part.sequence, at(i))));
                }
            }
            floats(self.types.t1, vec![tokens, heads, head_dim], &values)
        };
        let kvlen = |part: &Part| lengths[part.sequence] + part.tokens;
        let starts = |lens: Vec<usize>| {
            let ends = lens.iter().scan(0, |end, len| {
                *end += len;
                Some(*end as i64)
            });
            int64s(vec![lens.len() + 1], &std::iter::once(0).chain(ends).collect::<Vec<_>>())
        };
        let columns = places.first().map_or(0, Vec::len);
        let cachestarts: Vec<_> = parts.iter().flat_map(|part| places[part.sequence].iter().copied()).collect();
        let shape = match placement.mode {
            CacheMode::Offset => vec![parts.len()],
            CacheMode::Paged => vec![parts.len(), columns],
        };
        let start_pos: Vec<_> = parts.iter().map(|part| lengths[part.sequence] as i64).collect();
        let decoding = parts.iter().filter(|part| part.decoding).count() as i64;
        let max = |lens: &mut dyn Iterator<Item = usize>| int64s(vec![1], &[lens.max().unwrap_or_default() as i64]);
        let mut inputs = BTreeMap::from([
            ("query", rows(Of::Query, heads)),
            ("current_key", rows(Of::Key, kv_heads)),
            ("current_value", rows(Of::Value, kv_heads)),
            ("seqstarts", starts(parts.iter().map(|part| part.tokens).collect())),
            ("kvstarts", starts(parts.iter().map(kvlen).collect())),
            ("cachestarts", int64s(shape, &cachestarts)),
            ("start_pos", int64s(vec![parts.len()], &start_pos)),
            ("decoding_batches", int64s(vec![1], &[decoding])),
            ("max_seqlen", max(&mut parts.iter().map(|part| part.tokens))),
            ("max_kvlen", max(&mut parts.iter().map(kvlen))),
        ]);
        if let Some(rank) = self.mask {
            inputs.insert("attn_mask", self.attn_mask(rank, lengths, parts, tokens));
        }
        inputs
    }

    /// A mask with NaN wherever nobody may read, and with padding.
    fn attn_mask(&self, rank: usize, lengths: &[usize], parts: &[Part], tokens: usize) -> Tensor {
        let planes = if rank == 3 { self.attention.num_heads as usize } else { 1 };
        let width = parts.iter().map(|part| lengths[part.sequence] + part.tokens).sum::<usize>() + 3;
        let mut values = vec![f32::NAN; planes * tokens * width];
        for plane in 0..planes {
            let (mut row, mut column) = (0, 0);
            for part in parts {
                let end = lengths[part.sequence] + part.tokens;
                for t in lengths[part.sequence]..end {
                    for j in 0..end {
                        let number = self.number(Of::Mask, part.sequence, [plane, t, j]);
                        values[(plane * tokens + row) * width + column + j] = number;
                    }
                    row += 1;
                }
                column += end;
            }
        }
        let planes = if rank == 3 { vec![planes] } else { Vec::new() };
        floats(self.types.t1, [planes, vec![tokens, width]].concat(), &values)
    }
}

impl Placement {
    /// The row of `cachestarts` of each sequence, by how long it becomes, and the slots that this takes.
    fn places(&self, ends: &[usize]) -> (Vec<Vec<i64>>, usize) {
        let page_size = match self.mode {
            CacheMode::Offset => ends.iter().copied().max().unwrap_or_default().max(1),
            CacheMode::Paged => self.page_size,
        };
        let pages: Vec<usize> = ends.iter().map(|end| end.div_ceil(page_size).max(1)).collect();
        let total: usize = pages.iter().sum();
        let mut order: Vec<usize> = (0..total).collect();
        order.sort_by_key(|&page| hash(&[self.shuffle, page as u64]));
        // A slot between pages is nobody's.
        let mut starts = order.into_iter().map(|page| (page * (page_size + 1) + 1) as i64);
        let columns = pages.iter().copied().max().unwrap_or_default();
        let row = |&used: &usize| {
            let own: Vec<_> = starts.by_ref().take(used).collect();
            own.into_iter().chain(std::iter::repeat(-1)).take(columns).collect()
        };
        (pages.iter().map(row).collect(), total * (page_size + 1) + 1)
    }
}

pub fn int64s(shape: Vec<usize>, values: &[i64]) -> Tensor {
    let bytes: Vec<_> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Tensor::new(ElementType::Int64, shape, &bytes).expect("as many values as the shape has")
}

fn floats(element: ElementType, shape: Vec<usize>, values: &[f32]) -> Tensor {
    let mut bytes = vec![0; values.len() * element.align()];
    write_floats(element, values, &mut bytes);
    Tensor::new(element, shape, &bytes).expect("as many values as the shape has")
}
