//! The attention operators as the conformance suite sees them.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use crate::attention::Case;
use crate::{CallResult, Implementation, Outcome, Tensor};
use kvcache_op::{
    AttentionBackend, AttentionCall, AttentionInputs, Backend, CacheAttentionAttributes, CacheAttentionInputs,
    ElementType, Error, IndexInputs, Inputs, MultiHeadAttention, MultiHeadCacheAttention, Workers,
};

use crate::backends::{read, write};

/// Backends of the operators, on some threads.
pub struct Attention<W> {
    /// The one that attends.
    pub backend: AttentionBackend,
    /// The one that stores.
    pub store: Backend,
    /// The threads.
    pub workers: W,
}

impl<W: Workers> Implementation<Case> for Attention<W> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        Ok(run_attention(case, (self.backend, self.store), |call, output, mass| match mass {
            None => call.run(write(output), &self.workers),
            Some(mass) => call.run_with_mass(write(output), write(mass), &self.workers),
        }))
    }
}

/// The results of a case's calls, which `run` makes once they are checked.
pub fn run_attention(
    case: &Case,
    backends: (AttentionBackend, Backend),
    run: impl Fn(AttentionCall<'_>, &mut Tensor, Option<&mut Tensor>) -> Result<(), Error>,
) -> Vec<CallResult> {
    let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
    let calls = case.steps.iter().map(|step| {
        let call = check_attention(&case.attributes, &step.inputs, [cache.as_mut(), scale.as_mut()], backends);
        let output = call.and_then(|call| {
            let fits = "a checked call has outputs that fit in memory";
            let mut output = Tensor::zeros(case.t1, call.output_shape().to_vec()).expect(fits);
            let mass = || Tensor::zeros(ElementType::Float32, call.mass_shape().to_vec()).expect(fits);
            let mut mass = case.has_mass.then(mass);
            run(call, &mut output, mass.as_mut())?;
            Ok([Some(output), mass].into_iter().flatten().collect())
        });
        let outcome = match output {
            Ok(outputs) => Outcome::Done(outputs),
            Err(error) => Outcome::Refused { kind: Some(error.kind().to_owned()), message: error.to_string() },
        };
        CallResult { outcome, cache: cache.clone(), scale: scale.clone() }
    });
    calls.collect()
}

/// A checked call: with a cache of `MultiHeadCacheAttention`, without one of `MultiHeadAttention`.
pub fn check_attention<'a, N: Borrow<str> + Ord>(
    attributes: &CacheAttentionAttributes,
    inputs: &'a BTreeMap<N, Tensor>,
    [cache, scale]: [Option<&'a mut Tensor>; 2],
    (backend, store): (AttentionBackend, Backend),
) -> Result<AttentionCall<'a>, Error> {
    let input = |name: &str| read(&inputs[name]);
    let attn_mask = inputs.get("attn_mask").map(read);
    let Some(cache) = cache else {
        let op = MultiHeadAttention::new(attributes.attention.clone())?.with_backend(backend);
        return op.check(&AttentionInputs {
            query: input("query"),
            key: input("key"),
            value: input("value"),
            seqstarts: input("seqstarts"),
            kvstarts: input("kvstarts"),
            decoding_batches: input("decoding_batches"),
            max_seqlen: input("max_seqlen"),
            max_kvlen: input("max_kvlen"),
            attn_mask,
        });
    };
    let op = MultiHeadCacheAttention::new(attributes.clone())?.with_backends(backend, store);
    let inputs = CacheAttentionInputs {
        query: input("query"),
        stored: stored(inputs),
        decoding_batches: input("decoding_batches"),
        attn_mask,
    };
    op.check(&inputs, write(cache), scale.map(write))
}

/// The inputs that are `KeyValueCache`'s.
pub fn stored<N: Borrow<str> + Ord>(inputs: &BTreeMap<N, Tensor>) -> Inputs<'_> {
    let input = |name: &str| read(&inputs[name]);
    Inputs {
        current_key: input("current_key"),
        current_value: input("current_value"),
        indices: IndexInputs {
            seqstarts: input("seqstarts"),
            kvstarts: input("kvstarts"),
            cachestarts: input("cachestarts"),
            start_pos: input("start_pos"),
            max_seqlen: input("max_seqlen"),
            max_kvlen: input("max_kvlen"),
        },
    }
}
