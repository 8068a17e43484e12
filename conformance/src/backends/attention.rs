//! The attention operators as the conformance suite sees them.

use crate::attention::{Case, Operator, Step};
use crate::{CallResult, Implementation, Outcome, Tensor};
use kvcache_op::{
    AttentionBackend, AttentionCall, AttentionInputs, Backend, CacheAttentionInputs, Error, IndexInputs, Inputs,
    MultiHeadAttention, MultiHeadCacheAttention, Workers,
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
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let calls = case.steps.iter().map(|step| {
            let outcome = match self.call(case, step, &mut cache, &mut scale) {
                Ok(output) => Outcome::Done(vec![output]),
                Err(error) => Outcome::Refused { kind: Some(error.kind().to_owned()), message: error.to_string() },
            };
            CallResult { outcome, cache: cache.clone(), scale: scale.clone() }
        });
        Ok(calls.collect())
    }
}

impl<W: Workers> Attention<W> {
    fn call(
        &self,
        case: &Case,
        step: &Step,
        cache: &mut Option<Tensor>,
        scale: &mut Option<Tensor>,
    ) -> Result<Tensor, Error> {
        let input = |name: &str| read(step.input(name));
        let attn_mask = step.inputs.get("attn_mask").map(read);
        match (case.operator, cache) {
            (Operator::MultiHeadAttention, _) => {
                let op = MultiHeadAttention::new(case.attributes.attention.clone())?.with_backend(self.backend);
                let inputs = AttentionInputs {
                    query: input("query"),
                    key: input("key"),
                    value: input("value"),
                    seqstarts: input("seqstarts"),
                    kvstarts: input("kvstarts"),
                    decoding_batches: input("decoding_batches"),
                    max_seqlen: input("max_seqlen"),
                    max_kvlen: input("max_kvlen"),
                    attn_mask,
                };
                self.run_call(op.check(&inputs)?, case)
            }
            (Operator::MultiHeadCacheAttention, None) => unreachable!("a case of {} has a cache", case.operator.name()),
            (Operator::MultiHeadCacheAttention, Some(cache)) => {
                let op = MultiHeadCacheAttention::new(case.attributes.clone())?.with_backends(self.backend, self.store);
                let inputs = CacheAttentionInputs {
                    query: input("query"),
                    stored: Inputs {
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
                    },
                    decoding_batches: input("decoding_batches"),
                    attn_mask,
                };
                self.run_call(op.check(&inputs, write(cache), scale.as_mut().map(write))?, case)
            }
        }
    }

    fn run_call(&self, call: AttentionCall<'_>, case: &Case) -> Result<Tensor, Error> {
        let output = Tensor::zeros(case.t1, call.output_shape().to_vec());
        let mut output = output.expect("a checked call has an output that fits in memory");
        call.run(write(&mut output), &self.workers)?;
        Ok(output)
    }
}
