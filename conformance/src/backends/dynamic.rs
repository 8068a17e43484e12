//! The operator as the conformance suite sees it.

use crate::{CallResult, Case, Implementation, Outcome, Outputs, Step, Tensor};
use kvcache_op::{Backend, Error, IndexInputs, Inputs, KeyValueCache, Workers};

use crate::backends::{read, write};

/// A backend of the operator, on some threads.
pub struct Operator<W> {
    /// The backend.
    pub backend: Backend,
    /// The threads.
    pub workers: W,
}

impl<W: Workers> Implementation for Operator<W> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let op = KeyValueCache::new(case.attributes.clone()).map(|op| op.with_backend(self.backend));
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let mut run = |step: &Step| {
            let outcome = match op.as_ref().map_err(Error::clone).and_then(|op| {
                let inputs = &step.inputs;
                let inputs = Inputs {
                    current_key: read(&inputs.current_key),
                    current_value: read(&inputs.current_value),
                    indices: IndexInputs {
                        seqstarts: read(&inputs.seqstarts),
                        kvstarts: read(&inputs.kvstarts),
                        cachestarts: read(&inputs.cachestarts),
                        start_pos: read(&inputs.start_pos),
                        max_seqlen: read(&inputs.max_seqlen),
                        max_kvlen: read(&inputs.max_kvlen),
                    },
                };
                let call = op.check(&inputs, write(&mut cache), scale.as_mut().map(write))?;
                let output = || Tensor::zeros(case.types.t1, call.output_shape().to_vec());
                let (Some(mut key), Some(mut value)) = (output(), output()) else {
                    unreachable!("a checked call has outputs that fit in memory");
                };
                let outputs = kvcache_op::Outputs { key: write(&mut key), value: write(&mut value) };
                call.run(outputs, &self.workers)?;
                Ok(Outputs { key, value })
            }) {
                Ok(outputs) => Outcome::Done(outputs),
                Err(error) => Outcome::Refused { kind: Some(error.kind().to_owned()), message: error.to_string() },
            };
            CallResult { outcome, cache: cache.clone(), scale: scale.clone() }
        };
        Ok(case.steps.iter().map(&mut run).collect())
    }
}
