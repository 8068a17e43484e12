//! Random legal calls of dynamic batching, as proptest wants them: the [conformance kit's](kvcache_conformance::random)
//! generator, from a seed.

use crate::attention_model::int64s;
pub use crate::random_tensors::After;
use crate::random_tensors::{Output, vector};
use kvcache_conformance::backends::{read, write};
use kvcache_conformance::random::Entropy;
pub use kvcache_conformance::random::{Plan, Planned};
use kvcache_conformance::{StepInputs, Tensor};
use kvcache_op::{Attributes, Backend, Call, ElementType, IndexInputs, Inputs, KeyValueCache, Outputs};
use proptest::prelude::*;
use proptest::test_runner::TestRng;

/// Plans of calls of every kind.
pub fn plans(max_inner: usize, tokens: usize) -> impl Strategy<Value = Plan> {
    any::<u64>().no_shrink().prop_map(move |seed| Plan::draw(&mut Entropy::seed(seed), max_inner, tokens))
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
        let mut entropy = Entropy::seed(rng.next_u64());
        Self::of(plan.call(&mut entropy), entropy.below(2))
    }

    /// A call, with outputs so many elements from a cache line.
    pub fn of(call: Planned, past_line: usize) -> Self {
        let (inputs, t1) = (call.inputs, call.types.t1);
        Self {
            attributes: call.attributes,
            t1,
            current: [inputs.current_key, inputs.current_value],
            seqstarts: vector(&inputs.seqstarts),
            kvstarts: vector(&inputs.kvstarts),
            cachestarts: inputs.cachestarts,
            start_pos: vector(&inputs.start_pos),
            cache: call.cache,
            scale: call.scale,
            past_line: past_line * t1.align(),
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
                max_seqlen: (&100_000).into(),
                max_kvlen: (&100_000).into(),
            },
        }
    }

    /// The inputs as golden cases have them.
    pub fn step_inputs(&self) -> StepInputs {
        let vector = |values: &[i64]| int64s(vec![values.len()], values);
        StepInputs {
            current_key: self.current[0].clone(),
            current_value: self.current[1].clone(),
            seqstarts: vector(&self.seqstarts),
            kvstarts: vector(&self.kvstarts),
            cachestarts: self.cachestarts.clone(),
            start_pos: vector(&self.start_pos),
            max_seqlen: int64s(vec![], &[1 << 20]),
            max_kvlen: int64s(vec![1], &[1 << 20]),
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

/// Calls of sequences with fewer past and current tokens than `tokens`, and heads of up to `max_inner` groups.
pub fn calls(max_inner: usize, tokens: usize) -> impl Strategy<Value = RandomCall> {
    plans(max_inner, tokens).prop_perturb(|plan, mut rng| RandomCall::new(&plan, &mut rng))
}
