//! Random calls of static batching.

pub use crate::random_tensors::After;
use crate::random_tensors::{Output, vector};
use kvcache_conformance::Tensor;
use kvcache_conformance::backends::{read, write};
use kvcache_conformance::random::{Entropy, Planned, static_call};
use kvcache_conformance::static_batching::StepInputs;
use kvcache_op::{Backend, ElementType, Outputs, StaticAttributes, StaticCall, StaticInputs, StaticKeyValueCache};
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
    /// A call, with outputs so many elements from a cache line.
    pub fn of(call: Planned<StaticAttributes, StepInputs>, past_line: usize) -> Self {
        let (inputs, t1) = (call.inputs, call.types.t1);
        Self {
            attributes: call.attributes,
            t1,
            current: [inputs.current_key, inputs.current_value],
            start_pos: vector(&inputs.start_pos)[0],
            cache: call.cache,
            scale: call.scale,
            past_line: past_line * t1.align(),
        }
    }

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
    any::<u64>().no_shrink().prop_map(move |seed| {
        let mut entropy = Entropy::seed(seed);
        RandomStaticCall::of(static_call(&mut entropy, max_inner, tokens), entropy.below(2))
    })
}
