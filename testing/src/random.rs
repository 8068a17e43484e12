//! Random legal calls, as proptest wants them: the [conformance kit's](kvcache_conformance::random) generator, from a
//! seed.

use std::ops::{Deref, DerefMut, Range};

use kvcache_conformance::backends::{cache_attributes, inputs_of, static_attributes, static_inputs_of, write};
pub use kvcache_conformance::random::Plan;
use kvcache_conformance::random::{Unstructured, static_call};
use kvcache_conformance::{Call, Operator, Tensor, Value};
use kvcache_op::{Backend, ElementType, KeyValueCache, Outputs, StaticKeyValueCache, TensorMut, Workers};
use proptest::prelude::*;
use proptest::test_runner::TestRng;

pub fn plans(max_inner: usize, tokens: usize) -> impl Strategy<Value = Plan> {
    any::<u64>().no_shrink().prop_map(move |seed| Plan::draw(&mut Unstructured::seed(seed), max_inner, tokens))
}

/// A legal call of `KeyValueCache`, of dynamic or static batching.
#[derive(Debug, Clone)]
pub struct RandomCall {
    call: Call,
    /// The outputs' offset from a cache line in elements: non-temporal stores depend on it.
    past_line: usize,
}

impl Deref for RandomCall {
    type Target = Call;

    fn deref(&self) -> &Call {
        &self.call
    }
}

impl DerefMut for RandomCall {
    fn deref_mut(&mut self) -> &mut Call {
        &mut self.call
    }
}

impl RandomCall {
    pub fn new(plan: &Plan, rng: &mut TestRng) -> Self {
        let mut unstructured = Unstructured::seed(rng.next_u64());
        Self { call: plan.call(&mut unstructured), past_line: unstructured.below(2) }
    }

    /// Outputs and state after the call.
    pub fn run_on(&self, backend: Backend, workers: &dyn Workers) -> After {
        let (mut cache, mut scale) = (self.cache().clone(), self.scale.clone());
        let (state, t1) = ((write(&mut cache), scale.as_mut().map(write)), self.t1());
        let outputs = |shape: &[usize]| [(); 2].map(|()| Output::new(t1, shape, self.past_line * t1.align()));
        let mut made;
        if self.operator == Operator::StaticKeyValueCache {
            let op = StaticKeyValueCache::new(static_attributes(&self.attributes)).unwrap().with_backend(backend);
            let call = op.check(&static_inputs_of(&self.inputs), state.0, state.1).unwrap();
            made = outputs(&call.output_shape());
            call.run(written(&mut made), workers).unwrap();
        } else {
            let op = KeyValueCache::new(cache_attributes(&self.attributes)).unwrap().with_backend(backend);
            let call = op.check(&inputs_of(&self.inputs), state.0, state.1).unwrap();
            made = outputs(&call.output_shape());
            call.run(written(&mut made), workers).unwrap();
        }
        let [key, value] = made.each_ref().map(Output::tensor);
        After { key, value, cache, scale }
    }
}

fn written(outputs: &mut [Output; 2]) -> Outputs<'_> {
    let [key, value] = outputs.each_mut().map(Output::write);
    Outputs { key, value }
}

/// Calls of sequences with fewer past and current tokens than `tokens`, and heads of up to `max_inner` groups.
pub fn calls(max_inner: usize, tokens: usize) -> impl Strategy<Value = RandomCall> {
    plans(max_inner, tokens).prop_perturb(|plan, mut rng| RandomCall::new(&plan, &mut rng))
}

pub fn static_calls(max_inner: usize, tokens: usize) -> impl Strategy<Value = RandomCall> {
    any::<u64>().no_shrink().prop_map(move |seed| {
        let mut unstructured = Unstructured::seed(seed);
        RandomCall { call: static_call(&mut unstructured, max_inner, tokens), past_line: unstructured.below(2) }
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    pub key: Tensor,
    pub value: Tensor,
    pub cache: Tensor,
    pub scale: Option<Tensor>,
}

impl After {
    /// Whether both are the same but for signs and payloads of NaN.
    pub fn is_but_for_nan(&self, other: &Self) -> bool {
        let alike = |(a, b): (&Tensor, &Tensor)| {
            let nan_alike = |i| Value::at(a, i).is_nan() && Value::at(b, i).is_nan();
            a == b || (0..Value::count(a)).all(|i| Value::at(a, i) == Value::at(b, i) || nan_alike(i))
        };
        let Self { key, value, cache, scale } = self;
        let pairs = [(key, &other.key), (value, &other.value), (cache, &other.cache)];
        pairs.into_iter().chain(scale.iter().zip(&other.scale)).all(alike)
    }
}

/// The bytes around an output, and in it before it is written.
const UNTOUCHED: u8 = 0xa5;

/// An output at this offset in bytes from a cache line.
pub struct Output {
    element: ElementType,
    shape: Vec<usize>,
    memory: Vec<u8>,
    place: Range<usize>,
}

impl Output {
    pub fn new(element: ElementType, shape: &[usize], past_line: usize) -> Self {
        let len = element.bytes(shape.iter().product()).unwrap();
        let memory = vec![UNTOUCHED; len + 2 * 64];
        let start = memory.as_ptr().align_offset(64) + past_line;
        Self { element, shape: shape.to_vec(), memory, place: start..start + len }
    }

    pub fn write(&mut self) -> TensorMut<'_> {
        let data = self.memory[self.place.clone()].as_mut_ptr();
        // SAFETY: memory of this type and shape, aligned for it, borrowed mutably as long as the result lives.
        unsafe { TensorMut::from_raw_parts(self.element, self.shape.as_slice(), data) }
    }

    /// The output, around which nothing has been written.
    pub fn tensor(&self) -> Tensor {
        let around = self.memory[..self.place.start].iter().chain(&self.memory[self.place.end..]);
        assert!(around.copied().all(|byte| byte == UNTOUCHED), "written outside an output");
        Tensor::new(self.element, self.shape.clone(), &self.memory[self.place.clone()]).unwrap()
    }
}
