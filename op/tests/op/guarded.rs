//! No backend accesses a byte outside its tensors: each tensor touches a guard page, at one end and then at the other.
//!
//! An access to such a page ends the process with a signal, also by instructions that sanitizers do not see
//! (non-temporal stores). Random calls run in processes of their own, so that the smallest failing call is reported;
//! the golden case that failed is the last that `--nocapture` prints.

use kvcache_conformance::{Expected, Tensor, cases};
use kvcache_op::{Attributes, Backend, ElementType, IndexInputs, Inputs, KeyValueCache, Outputs, Serial};
use kvcache_testing::backends::backends;
use kvcache_testing::guarded::{Guard, Guarded};
use kvcache_testing::random::{After, RandomCall, calls};
use proptest::prelude::*;

/// Everything that a call reads, and its state.
struct GuardedCall<'a> {
    attributes: &'a Attributes,
    /// In the operator's order, up to `max_kvlen`.
    inputs: [&'a Tensor; 8],
    cache: &'a Tensor,
    scale: Option<&'a Tensor>,
}

impl GuardedCall<'_> {
    /// What the call leaves behind, with every tensor guarded.
    fn run(&self, backend: Backend, guard: Guard) -> After {
        let op = KeyValueCache::new(self.attributes.clone()).unwrap().with_backend(backend);
        let inputs = self.inputs.map(|input| Guarded::new(input, guard));
        let [current_key, current_value, seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen] =
            inputs.each_ref().map(Guarded::read);
        let indices = IndexInputs { seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen };
        let inputs = Inputs { current_key, current_value, indices };
        let mut cache = Guarded::new(self.cache, guard);
        let mut scale = self.scale.map(|scale| Guarded::new(scale, guard));
        let call = op.check(&inputs, cache.write(), scale.as_mut().map(Guarded::write)).unwrap();
        let output = Tensor::zeros(self.inputs[0].element(), call.output_shape().to_vec()).unwrap();
        let (mut key, mut value) = (Guarded::new(&output, guard), Guarded::new(&output, guard));
        call.run(Outputs { key: key.write(), value: value.write() }, &Serial).unwrap();
        After {
            key: key.tensor(),
            value: value.tensor(),
            cache: cache.tensor(),
            scale: scale.as_ref().map(Guarded::tensor),
        }
    }

    /// The backend and the guard with which the call leaves something else behind, if any.
    fn disagreement(&self, expected: &After) -> Option<(Backend, Guard)> {
        backends()
            .flat_map(|backend| [(backend, Guard::Before), (backend, Guard::Behind)])
            .find(|&(backend, guard)| self.run(backend, guard) != *expected)
    }
}

#[test]
fn golden_calls_stay_inside_their_operands() {
    let mut calls = 0;
    for case in cases().expect("the golden cases can be read") {
        println!("{}", case.name);
        let (mut cache, mut scale) = (&case.cache, case.scale.as_ref());
        for step in &case.steps {
            let Expected::Success(after) = &step.expected else { continue };
            let i = &step.inputs;
            let operands = GuardedCall {
                attributes: &case.attributes,
                inputs: [
                    &i.current_key,
                    &i.current_value,
                    &i.seqstarts,
                    &i.kvstarts,
                    &i.cachestarts,
                    &i.start_pos,
                    &i.max_seqlen,
                    &i.max_kvlen,
                ],
                cache,
                scale,
            };
            let reference = operands.run(Backend::Reference, Guard::Behind);
            assert_eq!(operands.disagreement(&reference), None, "{}", case.name);
            (cache, scale) = (after.cache.as_ref().expect("there is one"), after.scale.as_ref());
            calls += 1;
        }
    }
    assert!(calls > 0);
}

fn indices(shape: &[usize], indices: &[i64]) -> Tensor {
    let bytes: Vec<_> = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
    Tensor::new(ElementType::Int64, shape.to_vec(), &bytes).unwrap()
}

/// The random call between guards.
fn disagreement(call: &RandomCall) -> Option<(Backend, Guard)> {
    let vector = |starts: &[i64]| indices(&[starts.len()], starts);
    let [current_key, current_value] = &call.current;
    let (seqstarts, kvstarts) = (vector(&call.seqstarts), vector(&call.kvstarts));
    let (start_pos, hint) = (vector(&call.start_pos), indices(&[], &[1000]));
    let operands = GuardedCall {
        attributes: &call.attributes,
        inputs: [current_key, current_value, &seqstarts, &kvstarts, &call.cachestarts, &start_pos, &hint, &hint],
        cache: &call.cache,
        scale: call.scale.as_ref(),
    };
    let reference = call.run(Backend::Reference, |call, outputs| call.run(outputs, &Serial).unwrap());
    operands.disagreement(&reference)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, fork: true, ..ProptestConfig::default() })]

    #[test]
    fn random_calls_stay_inside_their_operands(call in calls(12, 12)) {
        prop_assert_eq!(disagreement(&call), None);
    }
}
