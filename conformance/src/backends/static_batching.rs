//! The operator of static batching as the conformance suite sees it.

use crate::static_batching::{Case, Step, StepInputs};
use crate::{CallResult, Implementation, Outcome, Outputs, Tensor};
use kvcache_op::{Backend, Error, StaticAttributes, StaticInputs, StaticKeyValueCache, Workers};

use crate::backends::{read, write};

/// A backend of the operator, on some threads.
pub struct StaticOperator<W> {
    /// The backend.
    pub backend: Backend,
    /// The threads.
    pub workers: W,
}

impl<W: Workers> Implementation<StaticAttributes, StepInputs> for StaticOperator<W> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let op = StaticKeyValueCache::new(case.attributes.clone()).map(|op| op.with_backend(self.backend));
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let mut run = |step: &Step| {
            let outcome = match op.as_ref().map_err(Error::clone).and_then(|op| {
                let inputs = StaticInputs {
                    current_key: read(&step.inputs.current_key),
                    current_value: read(&step.inputs.current_value),
                    start_pos: read(&step.inputs.start_pos),
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
