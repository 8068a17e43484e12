//! No backend accesses a byte outside its tensors: each tensor touches a guard page, at one end and then at the other.
//!
//! An access to such a page ends the process with a signal, also by instructions that sanitizers do not see
//! (non-temporal stores). Random calls run in processes of their own, so that the smallest failing call is reported.

use kvcache_conformance::{NamedInputs, Tensor};
use kvcache_op::{Backend, IndexInputs, Inputs, KeyValueCache, Outputs, Serial};
use kvcache_testing::backends::backends;
use kvcache_testing::guarded::{Guard, Guarded};
use kvcache_testing::random::{After, RandomCall, Runs, calls};
use proptest::prelude::*;

/// What the call leaves behind, with every tensor guarded.
fn run(call: &RandomCall, backend: Backend, guard: Guard) -> After {
    let op = KeyValueCache::new(call.attributes.clone()).unwrap().with_backend(backend);
    let inputs: Vec<_> = call.inputs.named().into_iter().map(|(_, input)| Guarded::new(input, guard)).collect();
    let [current_key, current_value, seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen] =
        inputs.iter().map(Guarded::read).collect::<Vec<_>>().try_into().unwrap();
    let indices = IndexInputs { seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen };
    let inputs = Inputs { current_key, current_value, indices };
    let mut cache = Guarded::new(&call.cache, guard);
    let mut scale = call.scale.as_ref().map(|scale| Guarded::new(scale, guard));
    let checked = op.check(&inputs, cache.write(), scale.as_mut().map(Guarded::write)).unwrap();
    let output = Tensor::zeros(call.types.t1, checked.output_shape().to_vec()).unwrap();
    let (mut key, mut value) = (Guarded::new(&output, guard), Guarded::new(&output, guard));
    checked.run(Outputs { key: key.write(), value: value.write() }, &Serial).unwrap();
    After {
        key: key.tensor(),
        value: value.tensor(),
        cache: cache.tensor(),
        scale: scale.as_ref().map(Guarded::tensor),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, fork: true, ..ProptestConfig::default() })]

    #[test]
    fn random_calls_stay_inside_their_operands(call in calls(12, 12)) {
        let expected = call.run_on(Backend::Reference, &Serial);
        for backend in backends() {
            for guard in [Guard::Before, Guard::Behind] {
                prop_assert!(run(&call, backend, guard) == expected, "{:?}, {:?}", backend, guard);
            }
        }
    }
}
