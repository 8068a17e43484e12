//! No backend accesses a byte outside its tensors: each tensor touches a guard page, at one end and then at the other.
//!
//! An access to such a page ends the process with a signal, also by instructions that sanitizers do not see
//! (non-temporal stores). Random calls run in processes of their own, so that the smallest failing call is reported.

use std::collections::BTreeMap;

use kvcache_conformance::backends::{attention_attributes, cache_attributes};
use kvcache_conformance::{Case, Expected, Suite, Tensor, Tensors, cases};
use kvcache_op::{
    AttentionBackend, Backend, CacheAttentionInputs, IndexInputs, Inputs, KeyValueCache, MultiHeadCacheAttention,
    Outputs, Serial,
};
use kvcache_testing::backends::backends;
use kvcache_testing::guarded::{Guard, Guarded};
use kvcache_testing::random::{After, RandomCall, calls};
use proptest::prelude::*;

fn guarded(inputs: &Tensors, guard: Guard) -> BTreeMap<&'static str, Guarded> {
    inputs.iter().map(|(name, input)| (*name, Guarded::new(input, guard))).collect()
}

fn read<'a>(inputs: &'a BTreeMap<&'static str, Guarded>) -> Inputs<'a> {
    let input = |name: &str| inputs[name].read();
    let indices = IndexInputs {
        seqstarts: input("seqstarts"),
        kvstarts: input("kvstarts"),
        cachestarts: input("cachestarts"),
        start_pos: input("start_pos"),
        max_seqlen: input("max_seqlen"),
        max_kvlen: input("max_kvlen"),
    };
    Inputs { current_key: input("current_key"), current_value: input("current_value"), indices }
}

/// What the call leaves behind, with every tensor guarded.
fn run(call: &RandomCall, backend: Backend, guard: Guard) -> After {
    let op = KeyValueCache::new(cache_attributes(&call.attributes)).unwrap().with_backend(backend);
    let inputs = guarded(&call.inputs, guard);
    let inputs = read(&inputs);
    let mut cache = Guarded::new(call.cache(), guard);
    let mut scale = call.scale.as_ref().map(|scale| Guarded::new(scale, guard));
    let checked = op.check(&inputs, cache.write(), scale.as_mut().map(Guarded::write)).unwrap();
    let output = Tensor::zeros(call.t1(), checked.output_shape().to_vec()).unwrap();
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

/// What the first call of a case gives: `attn_output`, cache and scale, with every tensor guarded.
fn attend(case: &Case, backend: AttentionBackend, guard: Guard) -> (Tensor, Tensor, Option<Tensor>) {
    let op = MultiHeadCacheAttention::new(attention_attributes(&case.attributes, &case.floats)).unwrap();
    let op = op.with_backends(backend, Backend::default());
    let inputs = guarded(&case.steps[0].inputs, guard);
    let inputs = CacheAttentionInputs {
        query: inputs["query"].read(),
        stored: read(&inputs),
        decoding_batches: inputs["decoding_batches"].read(),
        attn_mask: inputs.get("attn_mask").map(Guarded::read),
        head_sink: inputs.get("head_sink").map(Guarded::read),
    };
    let mut cache = Guarded::new(case.cache.as_ref().unwrap(), guard);
    let mut scale = case.scale.as_ref().map(|scale| Guarded::new(scale, guard));
    let call = op.check(&inputs, cache.write(), scale.as_mut().map(Guarded::write)).unwrap();
    let output = &Tensor::zeros(case.t1(), case.steps[0].inputs["query"].shape().to_vec()).unwrap();
    let mut output = Guarded::new(output, guard);
    call.run(output.write(), &Serial).unwrap();
    (output.tensor(), cache.tensor(), scale.as_ref().map(Guarded::tensor))
}

#[test]
fn attention_stays_inside_its_operands() {
    let is_legal = |case: &Case| matches!(case.steps[0].expected, Expected::Success(_)) && case.cache.is_some();
    let cases: Vec<_> = cases(Suite::Attention).unwrap().into_iter().filter(is_legal).collect();
    assert!(cases.len() > 100);
    for case in &cases {
        for backend in AttentionBackend::all().skip(1) {
            let [before, behind] = [Guard::Before, Guard::Behind].map(|guard| attend(case, backend, guard));
            assert!(before == behind, "{}: {}", case.name, backend.name());
        }
    }
}
