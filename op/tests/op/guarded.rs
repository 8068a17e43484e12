//! No backend accesses a byte outside its tensors: each tensor touches a guard page, at one end and then at the other.
//!
//! An access to such a page ends the process with a signal, also by instructions that sanitizers do not see
//! (non-temporal stores). Random calls run in processes of their own, so that the smallest failing call is reported;
//! the golden case that failed is the last that `--nocapture` prints.

use kvcache_conformance::{Expected, NamedInputs, StepInputs, Tensor, cases};
use kvcache_op::{Attributes, Backend, IndexInputs, Inputs, KeyValueCache, Outputs, Serial};
use kvcache_testing::backends::backends;
use kvcache_testing::guarded::{Guard, Guarded};
use kvcache_testing::random::{After, RandomCall, Runs, calls};
use proptest::prelude::*;

struct GuardedCall<'a> {
    attributes: &'a Attributes,
    inputs: &'a StepInputs,
    cache: &'a Tensor,
    scale: Option<&'a Tensor>,
}

impl GuardedCall<'_> {
    /// What the call leaves behind, with every tensor guarded.
    fn run(&self, backend: Backend, guard: Guard) -> After {
        let op = KeyValueCache::new(self.attributes.clone()).unwrap().with_backend(backend);
        let inputs: Vec<_> = self.inputs.named().into_iter().map(|(_, input)| Guarded::new(input, guard)).collect();
        let [current_key, current_value, seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen] =
            inputs.iter().map(Guarded::read).collect::<Vec<_>>().try_into().unwrap();
        let indices = IndexInputs { seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen };
        let inputs = Inputs { current_key, current_value, indices };
        let mut cache = Guarded::new(self.cache, guard);
        let mut scale = self.scale.map(|scale| Guarded::new(scale, guard));
        let call = op.check(&inputs, cache.write(), scale.as_mut().map(Guarded::write)).unwrap();
        let output = Tensor::zeros(self.inputs.current_key.element(), call.output_shape().to_vec()).unwrap();
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
    // Of cases that differ in layouts and types alone, some.
    for case in cases().expect("the golden cases can be read").into_iter().step_by(3) {
        println!("{}", case.name);
        let (mut cache, mut scale) = (&case.cache, case.scale.as_ref());
        for step in &case.steps {
            let Expected::Success(after) = &step.expected else { continue };
            let operands = GuardedCall { attributes: &case.attributes, inputs: &step.inputs, cache, scale };
            let reference = operands.run(Backend::Reference, Guard::Behind);
            assert_eq!(operands.disagreement(&reference), None, "{}", case.name);
            (cache, scale) = (after.cache.as_ref().expect("there is one"), after.scale.as_ref());
            calls += 1;
        }
    }
    assert!(calls > 0);
}

fn disagreement(call: &RandomCall) -> Option<(Backend, Guard)> {
    let operands = GuardedCall {
        attributes: &call.attributes,
        inputs: &call.inputs,
        cache: &call.cache,
        scale: call.scale.as_ref(),
    };
    let reference = call.run_on(Backend::Reference, &Serial);
    operands.disagreement(&reference)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, fork: true, ..ProptestConfig::default() })]

    #[test]
    fn random_calls_stay_inside_their_operands(call in calls(12, 12)) {
        prop_assert_eq!(disagreement(&call), None);
    }
}
