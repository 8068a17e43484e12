//! Random calls of every kind.

#[path = "memory.rs"]
pub mod memory;

use std::ops::Range;

use half::f16;
use kvcache_golden::Tensor;
use kvcache_op::schema::{CacheDims, QuantBit, TypeCombination};
use kvcache_op::{
    Attributes, Backend, CacheLayout, CacheMode, Call, ElementType, IndexInputs, Inputs, KeyValueCache, Outputs,
    TensorMut,
};
use proptest::prelude::*;
use proptest::test_runner::TestRng;

/// What a random call is made from.
#[derive(Debug, Clone)]
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
}

/// Plans of calls of every kind.
pub fn plans(max_inner: usize, tokens: usize) -> impl Strategy<Value = Plan> {
    let layer = (1..4usize).prop_flat_map(|num_layer| (Just(num_layer), 0..num_layer));
    (
        (
            prop::sample::select(&TypeCombination::LEGAL[..]),
            prop::sample::select(&CacheLayout::ALL[..]),
            prop::sample::select(&CacheMode::ALL[..]),
        ),
        (0..4usize, 0..=max_inner, 1..5usize, layer),
        prop_oneof![1..10usize, Just(16), Just(24), Just(32), Just(64), Just(128), Just(136), Just(258)],
        1..9usize,
        prop::collection::vec((0..tokens, 0..tokens), 0..5),
    )
        .prop_map(|((types, layout, mode), (num_heads, inner, num_repeat, layer), group, page_size, sequences)| {
            Plan {
                types,
                layout,
                mode,
                num_heads,
                inner,
                group: if types.quant_bit == 4 { group.next_multiple_of(2) } else { group },
                max_head_dim: 300,
                num_repeat,
                num_layer: layer.0,
                layer_idx: layer.1,
                page_size,
                sequences,
            }
        })
}

/// What a call leaves behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    pub key: Tensor,
    pub value: Tensor,
    pub cache: Tensor,
    pub scale: Option<Tensor>,
}

/// A legal call with random values.
#[derive(Debug, Clone)]
pub struct RandomCall {
    pub attributes: Attributes,
    pub t1: ElementType,
    pub current: [Tensor; 2],
    pub seqstarts: Vec<i64>,
    pub kvstarts: Vec<i64>,
    pub cachestarts: Tensor,
    pub start_pos: Vec<i64>,
    pub cache: Tensor,
    pub scale: Option<Tensor>,
    /// How far the outputs lie past the beginning of a line: what is streamed depends on it.
    past_line: usize,
}

impl RandomCall {
    /// A call as planned.
    pub fn new(plan: &Plan, rng: &mut TestRng) -> Self {
        let Plan { types, layout, mode, num_heads, page_size, .. } = *plan;
        let quantized = QuantBit::from_code(types.quant_bit).is_some();
        let head_dim = match quantized {
            true => plan.inner.min(plan.max_head_dim / plan.group) * plan.group,
            // Of all lengths, and of those that are whole lines.
            false => plan.inner * if plan.group.is_multiple_of(2) { 8 } else { 3 },
        };
        let starts = |len: &dyn Fn(&(usize, usize)) -> usize| {
            let mut starts = vec![0];
            starts.extend(plan.sequences.iter().scan(0, |end, sequence| {
                *end += len(sequence) as i64;
                Some(*end)
            }));
            starts
        };
        let seqstarts = starts(&|&(_, current)| current);
        let kvstarts = starts(&|&(past, current)| past + current);
        let total_seqlen = *seqstarts.last().unwrap() as usize;

        let (cachestarts, max_t) = match mode {
            CacheMode::Offset => offsets(plan, rng),
            CacheMode::Paged => pages(plan, rng),
        };
        let shape = match mode {
            CacheMode::Offset => vec![plan.sequences.len()],
            CacheMode::Paged => vec![plan.sequences.len(), max_pages(plan)],
        };
        let dims = CacheDims { max_t, num_layer: plan.num_layer, num_heads, inner: head_dim };
        let scale = types.t3.map(|t3| {
            let dims = CacheDims { inner: head_dim / plan.group, ..dims };
            random(t3, layout.shape(dims).to_vec(), rng)
        });
        let current_shape = vec![total_seqlen, num_heads, head_dim];
        Self {
            attributes: Attributes {
                num_layer: plan.num_layer as i64,
                layer_idx: plan.layer_idx as i64,
                quant_bit: types.quant_bit,
                quant_group: plan.group as i64,
                num_repeat: plan.num_repeat as i64,
                cache_mode: mode.code(),
                cache_layout: layout.code(),
                page_size: page_size as i64,
            },
            t1: types.t1,
            current: [random(types.t1, current_shape.clone(), rng), random(types.t1, current_shape, rng)],
            seqstarts,
            kvstarts,
            cachestarts: Tensor::new(ElementType::Int64, shape, &bytes(&cachestarts)).unwrap(),
            start_pos: plan.sequences.iter().map(|&(past, _)| past as i64).collect(),
            cache: random(types.t2, layout.shape(dims).to_vec(), rng),
            scale,
            past_line: below(rng, 2) * types.t1.align(),
        }
    }

    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            current_key: memory::read(&self.current[0]),
            current_value: memory::read(&self.current[1]),
            indices: IndexInputs {
                seqstarts: self.seqstarts.as_slice().into(),
                kvstarts: self.kvstarts.as_slice().into(),
                cachestarts: memory::read(&self.cachestarts),
                start_pos: self.start_pos.as_slice().into(),
                max_seqlen: (&1000).into(),
                max_kvlen: (&1000).into(),
            },
        }
    }

    /// Outputs and state after the call, which `make` makes.
    pub fn run(&self, backend: Backend, make: impl FnOnce(Call<'_>, Outputs<'_>)) -> After {
        let op = KeyValueCache::new(self.attributes.clone()).unwrap().with_backend(backend);
        let (mut cache, mut scale) = (self.cache.clone(), self.scale.clone());
        let inputs = self.inputs();
        let call = op.check(&inputs, memory::write(&mut cache), scale.as_mut().map(memory::write)).unwrap();
        let shape = call.output_shape();
        let output = || Output::new(self.t1, shape, self.past_line);
        let (mut key, mut value) = (output(), output());
        make(call, Outputs { key: key.write(), value: value.write() });
        After { key: key.tensor(), value: value.tensor(), cache, scale }
    }
}

/// What stands around an output, and in it before it is written.
const UNTOUCHED: u8 = 0xa5;

/// An output that begins so many bytes past the beginning of a line.
struct Output {
    element: ElementType,
    shape: [usize; 3],
    memory: Vec<u8>,
    place: Range<usize>,
}

impl Output {
    fn new(element: ElementType, shape: [usize; 3], past_line: usize) -> Self {
        let len = element.bytes(shape.iter().product()).unwrap();
        let memory = vec![UNTOUCHED; len + 2 * 64];
        let start = memory.as_ptr().align_offset(64) + past_line;
        Self { element, shape, memory, place: start..start + len }
    }

    fn write(&mut self) -> TensorMut<'_> {
        let data = self.memory[self.place.clone()].as_mut_ptr();
        // SAFETY: memory of this type and shape, aligned for it, borrowed mutably as long as the result lives.
        unsafe { TensorMut::from_raw_parts(self.element, self.shape, data) }
    }

    /// The output, around which nothing has been written.
    fn tensor(&self) -> Tensor {
        let around = self.memory[..self.place.start].iter().chain(&self.memory[self.place.end..]);
        assert!(around.copied().all(|byte| byte == UNTOUCHED), "written outside an output");
        Tensor::new(self.element, self.shape.to_vec(), &self.memory[self.place.clone()]).unwrap()
    }
}

/// Disjoint places in random order, with gaps.
fn offsets(plan: &Plan, rng: &mut TestRng) -> (Vec<i64>, usize) {
    let mut order: Vec<_> = (0..plan.sequences.len()).collect();
    shuffle(&mut order, rng);
    let mut starts = vec![0; order.len()];
    let mut max_t = 0;
    for b in order {
        max_t += below(rng, 3);
        starts[b] = max_t as i64;
        max_t += plan.sequences[b].0 + plan.sequences[b].1;
    }
    (starts, max_t + below(rng, 3))
}

fn max_pages(plan: &Plan) -> usize {
    plan.sequences.iter().map(|&(past, current)| (past + current).div_ceil(plan.page_size)).max().unwrap_or(0) + 1
}

/// Disjoint pages in random order, unaligned, with -1 behind the last used one.
fn pages(plan: &Plan, rng: &mut TestRng) -> (Vec<i64>, usize) {
    let max_p = max_pages(plan);
    let used = |&(past, current): &(usize, usize)| (past + current).div_ceil(plan.page_size);
    let mut starts: Vec<_> = (0..plan.sequences.iter().map(used).sum()).map(|p: usize| p * plan.page_size).collect();
    let mut max_t = starts.len() * plan.page_size;
    let shift = below(rng, 3);
    starts.iter_mut().for_each(|start| *start += shift);
    max_t += shift;
    shuffle(&mut starts, rng);
    let mut table = vec![-1; plan.sequences.len() * max_p];
    for (b, sequence) in plan.sequences.iter().enumerate() {
        for p in 0..used(sequence) {
            table[b * max_p + p] = starts.pop().unwrap() as i64;
        }
    }
    (table, max_t)
}

fn below(rng: &mut TestRng, end: usize) -> usize {
    rng.next_u32() as usize % end
}

fn shuffle<T>(items: &mut [T], rng: &mut TestRng) {
    for i in (1..items.len()).rev() {
        items.swap(i, below(rng, i + 1));
    }
}

fn bytes(indices: &[i64]) -> Vec<u8> {
    indices.iter().flat_map(|index| index.to_le_bytes()).collect()
}

/// A float that is likely to find an edge: of ordinary size, a tie of a group, tiny, huge, or none at all.
fn float(rng: &mut TestRng) -> f32 {
    let x = (rng.next_u32() as i32 >> 8) as f32 / 2f32.powi(20);
    match rng.next_u32() % 64 {
        0 => 0.0,
        1 => -0.0,
        2 => 63.5,
        3 => 127.0,
        4 => x * 2f32.powi(-18),
        5 => x * 2f32.powi(-130),
        6 => x * 8192.0,
        7 => f32::NAN,
        8 => f32::INFINITY,
        9..20 => x.round() + 0.5,
        _ => x,
    }
}

/// Every float of `rng` but few poisoned ones, or random bits for integers.
fn random(element: ElementType, shape: Vec<usize>, rng: &mut TestRng) -> Tensor {
    let mut tensor = Tensor::zeros(element, shape).unwrap();
    // Poison spreads over its group; most tensors have none, so that the arithmetic shows.
    let poisoned = below(rng, 4) == 0;
    let mut next = || {
        let x = float(rng);
        if x.is_finite() || poisoned { x } else { 1.0 }
    };
    match element {
        ElementType::Float32 => {
            for to in tensor.bytes_mut().chunks_exact_mut(4) {
                to.copy_from_slice(&next().to_le_bytes());
            }
        }
        ElementType::Float16 => {
            for (i, to) in tensor.bytes_mut().chunks_exact_mut(2).enumerate() {
                let x = f16::from_f32(next());
                // Conversions make quiet NaNs only; a signalling one comes by its bits.
                let signalling = if x.is_nan() && i % 2 == 0 { 0x02ff } else { 0 };
                to.copy_from_slice(&(x.to_bits() ^ signalling).to_le_bytes());
            }
        }
        _ => rng.fill_bytes(tensor.bytes_mut()),
    }
    tensor
}

/// Calls of sequences with fewer past and current tokens than `tokens`, and heads of up to `max_inner` groups.
pub fn calls(max_inner: usize, tokens: usize) -> impl Strategy<Value = RandomCall> {
    plans(max_inner, tokens).prop_perturb(|plan, mut rng| RandomCall::new(&plan, &mut rng))
}
