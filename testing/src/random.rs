//! Random legal calls, as proptest wants them: the [conformance kit's](kvcache_conformance::random) generator, from a
//! seed.

use std::ops::{Deref, DerefMut, Range};

use kvcache_conformance::backends::{inputs_of, static_inputs_of, write};
use kvcache_conformance::random::{Entropy, static_call};
pub use kvcache_conformance::random::{Plan, Planned};
use kvcache_conformance::{StepInputs, Tensor, static_batching};
use kvcache_op::{
    Attributes, Backend, Call, ElementType, KeyValueCache, Outputs, StaticAttributes, StaticCall, StaticKeyValueCache,
    TensorMut, Workers,
};
use proptest::prelude::*;
use proptest::test_runner::TestRng;

pub fn plans(max_inner: usize, tokens: usize) -> impl Strategy<Value = Plan> {
    any::<u64>().no_shrink().prop_map(move |seed| Plan::draw(&mut Entropy::seed(seed), max_inner, tokens))
}

#[derive(Debug, Clone)]
pub struct RandomCall<A = Attributes, I = StepInputs> {
    planned: Planned<A, I>,
    /// The outputs' offset from a cache line in elements: non-temporal stores depend on it.
    past_line: usize,
}

pub type RandomStaticCall = RandomCall<StaticAttributes, static_batching::StepInputs>;

impl<A, I> Deref for RandomCall<A, I> {
    type Target = Planned<A, I>;

    fn deref(&self) -> &Planned<A, I> {
        &self.planned
    }
}

impl<A, I> DerefMut for RandomCall<A, I> {
    fn deref_mut(&mut self) -> &mut Planned<A, I> {
        &mut self.planned
    }
}

impl<A, I> RandomCall<A, I> {
    fn outputs(&self, shape: &[usize]) -> [Output; 2] {
        let t1 = self.types.t1;
        [(); 2].map(|()| Output::new(t1, shape, self.past_line * t1.align()))
    }
}

impl RandomCall {
    pub fn new(plan: &Plan, rng: &mut TestRng) -> Self {
        let mut entropy = Entropy::seed(rng.next_u64());
        Self { planned: plan.call(&mut entropy), past_line: entropy.below(2) }
    }
}

/// A call that the operator makes on any backend and threads.
pub trait Runs {
    fn run_on(&self, backend: Backend, workers: &dyn Workers) -> After;
}

/// For the calls of an operator: `run` gives outputs and state after the call, which `make` makes.
macro_rules! runs {
    ($Random:ty, $Op:ident, $inputs_of:ident, $Call:ty) => {
        impl $Random {
            pub fn run(&self, backend: Backend, make: impl FnOnce($Call, Outputs<'_>)) -> After {
                let op = $Op::new(self.attributes.clone()).unwrap().with_backend(backend);
                let (mut cache, mut scale) = (self.cache.clone(), self.scale.clone());
                let call = op.check(&$inputs_of(&self.inputs), write(&mut cache), scale.as_mut().map(write)).unwrap();
                let mut outputs = self.outputs(&call.output_shape());
                let [key, value] = outputs.each_mut().map(Output::write);
                make(call, Outputs { key, value });
                let [key, value] = outputs.each_ref().map(Output::tensor);
                After { key, value, cache, scale }
            }
        }

        impl Runs for $Random {
            fn run_on(&self, backend: Backend, workers: &dyn Workers) -> After {
                self.run(backend, |call, outputs| call.run(outputs, workers).unwrap())
            }
        }
    };
}
runs!(RandomCall, KeyValueCache, inputs_of, Call<'_>);
runs!(RandomStaticCall, StaticKeyValueCache, static_inputs_of, StaticCall<'_>);

/// Calls of sequences with fewer past and current tokens than `tokens`, and heads of up to `max_inner` groups.
pub fn calls(max_inner: usize, tokens: usize) -> impl Strategy<Value = RandomCall> {
    plans(max_inner, tokens).prop_perturb(|plan, mut rng| RandomCall::new(&plan, &mut rng))
}

pub fn static_calls(max_inner: usize, tokens: usize) -> impl Strategy<Value = RandomStaticCall> {
    any::<u64>().no_shrink().prop_map(move |seed| {
        let mut entropy = Entropy::seed(seed);
        RandomCall { planned: static_call(&mut entropy, max_inner, tokens), past_line: entropy.below(2) }
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    pub key: Tensor,
    pub value: Tensor,
    pub cache: Tensor,
    pub scale: Option<Tensor>,
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
