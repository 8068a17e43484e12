//! Random calls of static batching.

pub use crate::random_tensors::After;
use crate::random_tensors::{Output, random};
use kvcache_conformance::Tensor;
use kvcache_conformance::backends::{read, write};
use kvcache_op::schema::{StaticCacheDims, TypeCombination};
use kvcache_op::{
    Backend, ElementType, Outputs, StaticAttributes, StaticCacheLayout, StaticCall, StaticInputs, StaticKeyValueCache,
};
use proptest::prelude::*;

/// A legal call with random values.
#[derive(Debug, Clone)]
pub struct RandomStaticCall {
    pub attributes: StaticAttributes,
    pub t1: ElementType,
    pub current: [Tensor; 2],
    pub start_pos: i64,
    pub cache: Tensor,
    pub scale: Option<Tensor>,
    /// The outputs' offset from a cache line: non-temporal stores depend on it.
    past_line: usize,
}

impl RandomStaticCall {
    pub fn inputs(&self) -> StaticInputs<'_> {
        StaticInputs {
            current_key: read(&self.current[0]),
            current_value: read(&self.current[1]),
            start_pos: (&self.start_pos).into(),
        }
    }

    /// Outputs and state after the call, which `make` makes.
    pub fn run(&self, backend: Backend, make: impl FnOnce(StaticCall<'_>, Outputs<'_>)) -> After {
        let op = StaticKeyValueCache::new(self.attributes.clone()).unwrap().with_backend(backend);
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

/// Calls of sequences with fewer past and current tokens than `tokens`, and heads of up to `max_inner` groups.
pub fn static_calls(max_inner: usize, tokens: usize) -> impl Strategy<Value = RandomStaticCall> {
    let layer = (1..4usize).prop_flat_map(|num_layer| (Just(num_layer), 0..num_layer));
    let types = prop::sample::select(&TypeCombination::LEGAL[..]);
    let layout = prop::sample::select(&StaticCacheLayout::ALL[..]);
    let group = prop_oneof![1..10usize, Just(16), Just(24), Just(32), Just(64), Just(128)];
    (
        (types, layout, group, layer),
        (0..4usize, 0..=max_inner, 1..5usize),
        (0..4usize, 0..3usize),
        (0..tokens, 0..tokens, 0..3usize),
    )
        .prop_perturb(
            |((types, layout, group, layer), sizes, (batch, more_b), (start_pos, seqlen, more_s)), mut rng| {
                let (num_heads, inner, num_repeat) = sizes;
                let group = if types.quant_bit == 4 { group.next_multiple_of(2) } else { group };
                let head_dim = match types.t3 {
                    Some(_) => inner.min(300 / group) * group,
                    // Of all lengths, and of those that are whole cache lines.
                    None => inner * if group.is_multiple_of(2) { 8 } else { 3 },
                };
                let dims = StaticCacheDims {
                    max_b: batch + more_b,
                    max_s: start_pos + seqlen + more_s,
                    num_layer: layer.0,
                    num_heads,
                    inner: head_dim,
                };
                let shape = |inner| layout.shape(StaticCacheDims { inner, ..dims }).to_vec();
                let current = vec![batch, seqlen, num_heads, head_dim];
                RandomStaticCall {
                    attributes: StaticAttributes {
                        num_layer: layer.0 as i64,
                        layer_idx: layer.1 as i64,
                        quant_bit: types.quant_bit,
                        quant_group: group as i64,
                        num_repeat: num_repeat as i64,
                        cache_layout: layout.code(),
                    },
                    t1: types.t1,
                    current: [random(types.t1, current.clone(), &mut rng), random(types.t1, current, &mut rng)],
                    start_pos: start_pos as i64,
                    cache: random(types.t2, shape(head_dim), &mut rng),
                    scale: types.t3.map(|t3| random(t3, shape(head_dim / group), &mut rng)),
                    past_line: rng.next_u32() as usize % 2 * types.t1.align(),
                }
            },
        )
}
