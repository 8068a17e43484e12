//! Random calls of every kind.

pub use crate::random_tensors::After;
use crate::random_tensors::{Output, below, random};
use kvcache_conformance::Tensor;
use kvcache_conformance::backends::{read, write};
use kvcache_op::schema::{CacheDims, QuantBit, TypeCombination};
use kvcache_op::{
    Attributes, Backend, CacheLayout, CacheMode, Call, ElementType, IndexInputs, Inputs, KeyValueCache, Outputs,
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
    /// The outputs' offset from a cache line: non-temporal stores depend on it.
    past_line: usize,
}

impl RandomCall {
    /// A call as planned.
    pub fn new(plan: &Plan, rng: &mut TestRng) -> Self {
        let Plan { types, layout, mode, num_heads, page_size, .. } = *plan;
        let quantized = QuantBit::from_code(types.quant_bit).is_some();
        let head_dim = match quantized {
            true => plan.inner.min(plan.max_head_dim / plan.group) * plan.group,
            // Of all lengths, and of those that are whole cache lines.
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
            current_key: read(&self.current[0]),
            current_value: read(&self.current[1]),
            indices: IndexInputs {
                seqstarts: self.seqstarts.as_slice().into(),
                kvstarts: self.kvstarts.as_slice().into(),
                cachestarts: read(&self.cachestarts),
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
        let call = op.check(&inputs, write(&mut cache), scale.as_mut().map(write)).unwrap();
        let shape = call.output_shape();
        let output = || Output::new(self.t1, &shape, self.past_line);
        let (mut key, mut value) = (output(), output());
        make(call, Outputs { key: key.write(), value: value.write() });
        After { key: key.tensor(), value: value.tensor(), cache, scale }
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

fn shuffle<T>(items: &mut [T], rng: &mut TestRng) {
    for i in (1..items.len()).rev() {
        items.swap(i, below(rng, i + 1));
    }
}

fn bytes(indices: &[i64]) -> Vec<u8> {
    indices.iter().flat_map(|index| index.to_le_bytes()).collect()
}

/// Calls of sequences with fewer past and current tokens than `tokens`, and heads of up to `max_inner` groups.
pub fn calls(max_inner: usize, tokens: usize) -> impl Strategy<Value = RandomCall> {
    plans(max_inner, tokens).prop_perturb(|plan, mut rng| RandomCall::new(&plan, &mut rng))
}
