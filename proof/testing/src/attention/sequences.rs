//! Sequences of a model in a cache, and the calls that make them grow.

use std::mem::MaybeUninit;

use kvcache_attention::{AttentionKernel, AttentionProblem};
use kvcache_conformance::backends::{operands, read, write};
use kvcache_conformance::random::index_inputs;
use kvcache_conformance::{Operator as Kind, Tensor, Tensors};
use kvcache_kernels::{Reference, Serial, Workers};
use kvcache_op::matmul_kernels::MatmulReference;
use kvcache_op::{
    Backend, ElementType, Kernels, KeyValueCache, MultiHeadAttention, MultiHeadCacheAttention, Operator, TensorMut,
};
use kvcache_schema::{AttentionAttributes, Attributes, CacheAttentionAttributes, CacheDims, CacheMode};

use super::{Attend, Model, Part, Placement, TensorKind};

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
        let parts: Vec<_> = tokens.iter().enumerate().map(part).collect();
        self.call(&parts, &mut on_host(None, &Serial), false);
    }

    /// Makes a call; returns `attn_output`.
    pub fn attend(&mut self, kernel: &dyn AttentionKernel, parts: &[Part], workers: &dyn Workers) -> Tensor {
        self.call(parts, &mut on_host(Some(kernel), workers), true)
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
    pub(super) fn call(&mut self, parts: &[Part], attend: &mut Attend<'_>, compares: bool) -> Tensor {
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
        let op = Operator::KeyValueCache(op.with_backend(Backend::Reference));
        let state = [Some(write(&mut self.cache)), self.scale.as_mut().map(write)];
        let operands = operands(Kind::KeyValueCache, |name| inputs.get(name).map(read), state);
        let call = op.check(operands).expect("a legal call");
        let output = || Tensor::zeros(self.model.types.t1, call.output_shape().to_vec()).expect("it fits");
        let mut outputs = [output(), output()];
        call.run(outputs.each_mut().map(write), &Serial).expect("outputs of its shape");
        outputs
    }

    fn inputs(&self, parts: &[Part]) -> Tensors {
        let Self { model, sequences, .. } = self;
        let AttentionAttributes { num_heads, num_kv_heads, head_dim, .. } = model.attention;
        let head_dim = head_dim as usize;
        let of = |part: &Part| &sequences[part.sequence];
        let kvlen = |part: &Part| of(part).len + part.tokens;
        let tokens: usize = parts.iter().map(|part| part.tokens).sum();
        let rows = |name: TensorKind, heads: i64| {
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
            ("query", rows(TensorKind::Query, num_heads)),
            ("current_key", rows(TensorKind::Key, num_kv_heads)),
            ("current_value", rows(TensorKind::Value, num_kv_heads)),
            ("cachestarts", Tensor::of_indices(&cachestarts, &shape)),
            ("decoding_batches", Tensor::of_indices(&[decoding], &[1])),
        ]);
        if let Some(rank) = model.mask {
            inputs.insert("attn_mask", self.attn_mask(rank, parts, tokens));
        }
        if model.has_sinks {
            let sinks: Vec<_> = (0..num_heads as usize).map(|h| model.number(TensorKind::Sink, 0, [h, 0, 0])).collect();
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
                        let number = self.model.number(TensorKind::Mask, numbers, [plane, t, j]);
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

/// Calls on a kernel of the host; without one they only store their tokens.
pub(super) fn on_host(
    kernel: Option<&dyn AttentionKernel>,
    workers: &dyn Workers,
) -> impl FnMut(&CacheAttentionAttributes, &Tensors, [Option<&mut Tensor>; 2]) -> Tensor {
    move |attributes, inputs, state| attend(attributes, inputs, state, kernel, None, workers)
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
    let (kind, op) = match &state[0] {
        Some(_) => (
            Kind::MultiHeadCacheAttention,
            MultiHeadCacheAttention::new(attributes.clone()).map(Operator::MultiHeadCacheAttention),
        ),
        None => (
            Kind::MultiHeadAttention,
            MultiHeadAttention::new(attributes.attention.clone()).map(Operator::MultiHeadAttention),
        ),
    };
    let operands = operands(kind, |name| inputs.get(name).map(read), state.map(|state| state.map(write)));
    let call = op.and_then(|op| op.check(operands)).expect("a legal call");
    let kernels = Kernels { cache: &Reference, attention: kernel.unwrap_or(&StoresOnly), matmul: &MatmulReference };
    let shape = call.outputs()[1].shape.clone();
    // SAFETY: memory of as many elements as the call has probabilities' sums, borrowed as long as the call.
    let mass = mass.map(|mass| unsafe {
        assert_eq!(mass.len(), shape.iter().product::<usize>());
        TensorMut::from_raw_parts(ElementType::Float32, shape, mass.as_mut_ptr().cast())
    });
    call.run_on([write(&mut output)].into_iter().chain(mass), &kernels, workers).expect("outputs of its shape");
    output
}

/// Attends to nothing: the call only stores its tokens.
struct StoresOnly;

impl AttentionKernel for StoresOnly {
    fn name(&self) -> &'static str {
        "stores-only"
    }

    fn attend(
        &self,
        _: &AttentionProblem<'_>,
        _: &mut [MaybeUninit<u8>],
        _: Option<&mut [MaybeUninit<f32>]>,
        _: &dyn Workers,
    ) {
    }
}
