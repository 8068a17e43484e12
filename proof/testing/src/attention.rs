//! Sequences whose numbers follow from a seed, attended to in any calls, over a cache that is anywhere. The output of a
//! token must depend on its own sequence alone: tests compare the rows of a sequence between runs.

use std::mem::MaybeUninit;

use kvcache_attention::AttentionKernel;
use kvcache_conformance::backends::{check_attention, inputs_of, named, write};
use kvcache_conformance::random::{Unstructured, index_inputs};
use kvcache_conformance::{Tensor, Tensors};
use kvcache_kernels::{Kernel, Reference, Serial, Workers, write_floats};
use kvcache_op::{AttentionBackend, Backend, KeyValueCache, Outputs};
use kvcache_schema::{
    AttentionAttributes, Attributes, CacheAttentionAttributes, CacheDims, CacheLayout, CacheMode, TypeCombination,
    multi_head_cache_attention,
};

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
enum Of {
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
    fn number(&self, of: Of, sequence: usize, at: [usize; 3]) -> f32 {
        let at = at.map(|index| index as u64);
        let bits = hash(&[self.seed, of as u64, sequence as u64, at[0], at[1], at[2]]);
        let has_infinite_key = || hash(&[self.seed, sequence as u64, at[0]]).is_multiple_of(7);
        match of {
            Of::Mask | Of::Sink if bits.is_multiple_of(5) => f32::NEG_INFINITY,
            Of::Key | Of::Value if sequence % 4 == 3 && bits.is_multiple_of(31) => f32::NAN,
            Of::Key if sequence % 4 == 2 && at[2] == 0 && has_infinite_key() => f32::NEG_INFINITY,
            Of::Value if sequence % 4 == 2 && has_infinite_key() => f32::INFINITY,
            Of::Query if sequence % 4 == 2 => (bits >> 40) as f32 / (1 << 22) as f32 + 1.0,
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
        self.run_with(
            &mut |attributes, inputs, state| attend(attributes, inputs, state, Some(kernel), None, &Serial),
            placement,
            calls,
        )
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

#[derive(Clone)]
struct Sequence {
    /// The sequence whose numbers it has: itself, or the one that it was forked from.
    numbers: usize,
    /// Its row of `cachestarts`.
    place: Vec<i64>,
    /// The tokens that are in the cache.
    len: usize,
}

/// Sequences in a cache.
#[derive(Clone)]
pub struct Sequences<'a> {
    model: &'a Model,
    attributes: CacheAttentionAttributes,
    sequences: Vec<Sequence>,
    cache: Tensor,
    scale: Option<Tensor>,
}

impl<'a> Sequences<'a> {
    /// Sequences without tokens, with room to become as long as these. Every byte of the cache is 0xff: NaN, or codes
    /// whose scales are NaN.
    pub fn new(model: &'a Model, placement: &Placement, ends: &[usize]) -> Self {
        let (places, max_t) = placement.places(ends);
        let cache = Attributes {
            num_layer: placement.num_layer,
            layer_idx: placement.layer_idx,
            quant_bit: model.types.quant_bit,
            quant_type: model.types.quant_type(),
            quant_group: model.quant_group,
            // Of every other model.
            quant_rotation: i64::from(model.types.t3.is_some()) & model.seed as i64,
            cache_mode: placement.mode.code(),
            cache_layout: placement.layout.code(),
            page_size: placement.page_size as i64,
            ..Attributes::default()
        };
        let [num_heads, head_dim] = [model.attention.num_kv_heads as usize, model.attention.head_dim as usize];
        let filled = |element, inner| {
            let dims = CacheDims { max_t, num_layer: placement.num_layer as usize, num_heads, inner };
            let mut tensor = Tensor::zeros(element, placement.layout.shape(dims).to_vec()).expect("it fits");
            tensor.bytes_mut().fill(0xff);
            tensor
        };
        let sequence = |(numbers, place)| Sequence { numbers, place, len: 0 };
        Self {
            model,
            attributes: CacheAttentionAttributes { attention: model.attention.clone(), cache },
            sequences: places.into_iter().enumerate().map(sequence).collect(),
            cache: filled(model.types.t2, head_dim),
            scale: model.types.t3.map(|t3| filled(t3, head_dim / model.quant_group as usize)),
        }
    }

    /// Makes a sequence a fork of another one: of the same numbers, on the same first pages.
    pub fn fork(&mut self, sequence: usize, from: usize, pages: usize) {
        let [fork, from] = self.sequences.get_disjoint_mut([sequence, from]).expect("two sequences");
        fork.place[..pages].copy_from_slice(&from.place[..pages]);
        (fork.numbers, fork.len) = (from.numbers, from.len);
    }

    /// Stores tokens of each sequence, which nothing attends to yet.
    pub fn store(&mut self, tokens: &[usize]) {
        let part = |(sequence, &tokens)| Part { sequence, tokens, decoding: false };
        self.call(
            &tokens.iter().enumerate().map(part).collect::<Vec<_>>(),
            &mut |attributes, inputs, state| attend(attributes, inputs, state, None, None, &Serial),
            false,
        );
    }

    /// Makes a call; returns `attn_output`.
    pub fn attend(&mut self, kernel: &dyn AttentionKernel, parts: &[Part], workers: &dyn Workers) -> Tensor {
        self.call(
            parts,
            &mut |attributes, inputs, state| attend(attributes, inputs, state, Some(kernel), None, workers),
            true,
        )
    }

    /// Makes a call; returns `attn_output` and `attention_mass`.
    pub fn attend_with_mass(
        &mut self,
        kernel: &dyn AttentionKernel,
        parts: &[Part],
        workers: &dyn Workers,
    ) -> (Tensor, Vec<f32>) {
        let rows: usize = parts.iter().map(|part| self.sequences[part.sequence].len + part.tokens).sum();
        let mut mass = vec![MaybeUninit::new(-7.0); rows * self.model.attention.num_heads as usize];
        let output = self.call(
            parts,
            &mut |attributes, inputs, state| attend(attributes, inputs, state, Some(kernel), Some(&mut mass), workers),
            false,
        );
        // SAFETY: every element was initialized above.
        (output, mass.into_iter().map(|sum| unsafe { sum.assume_init() }).collect())
    }

    /// Makes a call, and compares it with a call over packed keys and values.
    fn call(&mut self, parts: &[Part], attend: &mut Attend<'_>, compares: bool) -> Tensor {
        let inputs = self.inputs(parts);
        let output = attend(&self.attributes, &inputs, [Some(&mut self.cache), self.scale.as_mut()]);
        // A quantized value is code times scale, whose product `KeyValueCache` rounds, and attention need not.
        if compares && self.model.types.t3.is_none() {
            let mut packed = inputs.clone();
            packed.extend(["key", "value"].into_iter().zip(self.load(&inputs)));
            let over_packed = attend(&self.attributes, &packed, [None, None]);
            assert!(over_packed == output, "MultiHeadAttention over what the cache holds gives other bits");
        }
        parts.iter().for_each(|part| self.sequences[part.sequence].len += part.tokens);
        output
    }

    /// What `KeyValueCache` gives of all tokens of a call that was made: `key` and `value`.
    fn load(&mut self, inputs: &Tensors) -> [Tensor; 2] {
        let op = KeyValueCache::new(self.attributes.cache.clone()).expect("a legal node");
        let (cache, scale) = (write(&mut self.cache), self.scale.as_mut().map(write));
        let call = op.check(&inputs_of(named(inputs)), cache, scale).expect("a legal call");
        let output = || Tensor::zeros(self.model.types.t1, call.output_shape().to_vec()).expect("it fits");
        let mut outputs = [output(), output()];
        let [key, value] = outputs.each_mut().map(write);
        Reference.load(&mut call.bind(Outputs { key, value }).expect("outputs of its shape"), &Serial);
        outputs
    }

    fn inputs(&self, parts: &[Part]) -> Tensors {
        let Self { model, sequences, .. } = self;
        let AttentionAttributes { num_heads, num_kv_heads, head_dim, .. } = model.attention;
        let head_dim = head_dim as usize;
        let of = |part: &Part| &sequences[part.sequence];
        let kvlen = |part: &Part| of(part).len + part.tokens;
        let tokens: usize = parts.iter().map(|part| part.tokens).sum();
        let rows = |name: Of, heads: i64| {
            let mut values = Vec::new();
            for part in parts {
                for t in of(part).len..kvlen(part) {
                    let at = |i: usize| [t, i / head_dim, i % head_dim];
                    let numbers = of(part).numbers;
                    values.extend((0..heads as usize * head_dim).map(|i| model.number(name, numbers, at(i))));
                }
            }
            model.floats(vec![tokens, heads as usize, head_dim], &values)
        };
        let cachestarts: Vec<_> = parts.iter().flat_map(|part| of(part).place.iter().copied()).collect();
        let mut shape = vec![parts.len()];
        if self.attributes.cache.cache_mode == CacheMode::Paged.code() {
            shape.push(sequences.first().map_or(0, |sequence| sequence.place.len()));
        }
        let decoding = parts.iter().filter(|part| part.decoding).count() as i64;
        let mut inputs = index_inputs(&parts.iter().map(|part| (of(part).len, part.tokens)).collect::<Vec<_>>());
        inputs.extend([
            ("query", rows(Of::Query, num_heads)),
            ("current_key", rows(Of::Key, num_kv_heads)),
            ("current_value", rows(Of::Value, num_kv_heads)),
            ("cachestarts", Tensor::of_indices(&cachestarts, &shape)),
            ("decoding_batches", Tensor::of_indices(&[decoding], &[1])),
        ]);
        if let Some(rank) = model.mask {
            inputs.insert("attn_mask", self.attn_mask(rank, parts, tokens));
        }
        if model.has_sinks {
            let sinks: Vec<_> = (0..num_heads as usize).map(|h| model.number(Of::Sink, 0, [h, 0, 0])).collect();
            inputs.insert("head_sink", model.floats(vec![sinks.len()], &sinks));
        }
        inputs
    }

    /// A mask with NaN wherever nobody may read, and with padding.
    fn attn_mask(&self, rank: usize, parts: &[Part], tokens: usize) -> Tensor {
        let planes = if rank == 3 { self.model.attention.num_heads as usize } else { 1 };
        let kvlen = |part: &Part| self.sequences[part.sequence].len + part.tokens;
        let width = parts.iter().map(kvlen).sum::<usize>() + 3;
        let mut values = vec![f32::NAN; planes * tokens * width];
        for plane in 0..planes {
            let (mut row, mut column) = (0, 0);
            for part in parts {
                let Sequence { numbers, len, .. } = self.sequences[part.sequence];
                let end = len + part.tokens;
                for t in len..end {
                    for j in 0..end {
                        let number = self.model.number(Of::Mask, numbers, [plane, t, j]);
                        values[(plane * tokens + row) * width + column + j] = number;
                    }
                    row += 1;
                }
                column += end;
            }
        }
        let planes = if rank == 3 { vec![planes] } else { Vec::new() };
        self.model.floats([planes, vec![tokens, width]].concat(), &values)
    }
}

/// Makes a legal call; without a kernel the call only stores its tokens.
fn attend(
    attributes: &CacheAttentionAttributes,
    inputs: &Tensors,
    state: [Option<&mut Tensor>; 2],
    kernel: Option<&dyn AttentionKernel>,
    mass: Option<&mut [MaybeUninit<f32>]>,
    workers: &dyn Workers,
) -> Tensor {
    let query = &inputs["query"];
    let mut output = Tensor::zeros(query.element(), query.shape().to_vec()).expect("it fits");
    let call = check_attention(
        attributes,
        named(inputs),
        state.map(|state| state.map(write)),
        (AttentionBackend::Reference, Backend::Reference),
    );
    let (mut problem, attn_output) = call.and_then(|call| call.bind(write(&mut output))).expect("a legal call");
    problem.store(&Reference, &Serial);
    if let Some(kernel) = kernel {
        kernel.attend(&problem, attn_output, mass, workers);
    }
    output
}
