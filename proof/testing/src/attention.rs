//! Sequences whose numbers follow from a seed, attended to in any calls, over a cache that is anywhere. The output of a
//! token must depend on its own sequence alone: tests compare the rows of a sequence between runs.

mod sequences;

use kvcache_attention::AttentionKernel;
use kvcache_conformance::random::Unstructured;
use kvcache_conformance::{Tensor, Tensors};
use kvcache_kernels::{Serial, write_floats};
use kvcache_schema::{
    AttentionAttributes, CacheAttentionAttributes, CacheLayout, CacheMode, TypeCombination, multi_head_cache_attention,
};

pub use sequences::Sequences;
use sequences::on_host;

/// What a node computes, wherever its cache is. Its numbers follow from `seed`.
#[derive(Debug, Clone)]
pub struct Model {
    pub types: TypeCombination,
    pub attention: AttentionAttributes,
    pub quant_group: i64,
    /// The rank of `attn_mask`, if there is one.
    pub mask: Option<usize>,
    pub has_sinks: bool,
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

/// New tokens of one sequence in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub sequence: usize,
    pub tokens: usize,
    pub decoding: bool,
}

/// Makes a call of attention with these attributes, these inputs, and cache and scale, if there are any: gives
/// `attn_output`.
pub type Attend<'a> = dyn FnMut(&CacheAttentionAttributes, &Tensors, [Option<&mut Tensor>; 2]) -> Tensor + 'a;

/// The tensors whose numbers are a sequence's own.
#[derive(Clone, Copy)]
enum TensorKind {
    Query,
    Key,
    Value,
    Mask,
    Sink,
}

fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |hash: u64, &part| {
        let mixed = (hash ^ part).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) ^ mixed >> 32
    })
}

impl Model {
    /// A model of any types, with one of these pairs of `num_heads` and `num_kv_heads`, and of `head_dim` and
    /// `quant_group`.
    pub fn draw(entropy: &mut Unstructured, heads: &[(i64, i64)], sizes: &[(i64, i64)]) -> Self {
        let types: Vec<_> = multi_head_cache_attention::all_combinations().collect();
        let ((num_heads, num_kv_heads), (head_dim, quant_group)) = (entropy.pick(heads), entropy.pick(sizes));
        let [is_causal, is_alibi] = [(); 2].map(|()| entropy.below(2) as i64);
        Self {
            types: entropy.pick(&types),
            attention: AttentionAttributes {
                num_heads,
                head_dim,
                is_causal,
                is_alibi,
                num_kv_heads,
                ..Default::default()
            },
            quant_group,
            mask: entropy.pick(&[None, Some(2), Some(3)]),
            has_sinks: false,
            seed: entropy.next(),
        }
    }

    /// The model with any window, scale, soft cap and sinks, or without.
    pub fn with_variants(mut self, entropy: &mut Unstructured) -> Self {
        self.attention.local_window_size = entropy.pick(&[-1, -1, 1, 3, 8]);
        self.attention.scale = entropy.pick(&[0.0, 0.0, 0.5, -0.25]);
        self.attention.softcap = entropy.pick(&[0.0, 0.0, 2.0, 30.0]);
        Self { has_sinks: entropy.one_in(2), ..self }
    }

    /// A number between -4 and 4. Every fourth sequence has NaN among its keys and values; the one before it has keys
    /// whose score is -inf, with values that are infinite.
    fn number(&self, of: TensorKind, sequence: usize, at: [usize; 3]) -> f32 {
        let at = at.map(|index| index as u64);
        let bits = hash(&[self.seed, of as u64, sequence as u64, at[0], at[1], at[2]]);
        let has_infinite_key = || hash(&[self.seed, sequence as u64, at[0]]).is_multiple_of(7);
        match of {
            TensorKind::Mask | TensorKind::Sink if bits.is_multiple_of(5) => f32::NEG_INFINITY,
            TensorKind::Key | TensorKind::Value if sequence % 4 == 3 && bits.is_multiple_of(31) => f32::NAN,
            TensorKind::Key if sequence % 4 == 2 && at[2] == 0 && has_infinite_key() => f32::NEG_INFINITY,
            TensorKind::Value if sequence % 4 == 2 && has_infinite_key() => f32::INFINITY,
            TensorKind::Query if sequence % 4 == 2 => (bits >> 40) as f32 / (1 << 22) as f32 + 1.0,
            _ => (bits >> 40) as f32 / (1 << 21) as f32 - 4.0,
        }
    }

    fn floats(&self, shape: Vec<usize>, values: &[f32]) -> Tensor {
        let element = self.types.t1;
        let mut bytes = vec![0; values.len() * element.align()];
        write_floats(element, values, &mut bytes);
        Tensor::new(element, shape, &bytes).expect("as many values as the shape has")
    }

    /// Makes the calls, in which sequences grow by their parts; returns the rows of each sequence, one after the other.
    pub fn run(&self, kernel: &dyn AttentionKernel, placement: &Placement, calls: &[Vec<Part>]) -> Vec<Vec<u8>> {
        self.run_with(&mut on_host(Some(kernel), &Serial), placement, calls)
    }

    /// Makes the calls, which attend so.
    pub fn run_with(&self, attend: &mut Attend<'_>, placement: &Placement, calls: &[Vec<Part>]) -> Vec<Vec<u8>> {
        let count = calls.iter().flatten().map(|part| part.sequence + 1).max().unwrap_or_default();
        let mut ends = vec![0; count];
        calls.iter().flatten().for_each(|part| ends[part.sequence] += part.tokens);
        let mut sequences = Sequences::new(self, placement, &ends);
        let mut rows = vec![Vec::new(); count];
        for parts in calls {
            let mut parts = parts.clone();
            parts.sort_by_key(|part| !part.decoding);
            let output = sequences.call(&parts, attend, true);
            let row = output.bytes().len() / output.shape()[0].max(1);
            let mut bytes = output.bytes();
            for part in parts {
                let (own, rest) = bytes.split_at(part.tokens * row);
                rows[part.sequence].extend_from_slice(own);
                bytes = rest;
            }
        }
        rows
    }
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

    pub fn draw(entropy: &mut Unstructured) -> Self {
        let (num_layer, layer_idx) = entropy.pick(&[(1, 0), (3, 0), (3, 1), (3, 2)]);
        let (layout, mode) = (entropy.pick(&CacheLayout::ALL), entropy.pick(&CacheMode::ALL));
        Self { layout, mode, page_size: entropy.within(1, 5), num_layer, layer_idx, shuffle: entropy.next() }
    }

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
