//! Golden cases on a kernel that is none of `op`'s backends; `op` checks the calls.

#[path = "../../../../op/tests/common/memory.rs"]
mod memory;

use kvcache_emulation_kernels::EmulatedCuda;
use kvcache_golden::{Case, Implementation, Outcome, Outputs, Played, Step, Tensor};
use kvcache_op::{Error, IndexInputs, Inputs, KeyValueCache};
use memory::{read, write};

/// The kernels as the conformance suite sees them.
pub struct Player(pub EmulatedCuda);

/// Why a call made no outputs.
enum Stop {
    /// The operator refused it, as it may.
    Refusal(Error),
    /// The kernels failed.
    Failure(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Refusal(error)
    }
}

impl Implementation for Player {
    fn play(&self, case: &Case) -> Result<Vec<Played>, String> {
        let op = KeyValueCache::new(case.attributes.clone());
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let mut play = |step: &Step| {
            let outcome = match op.as_ref().map_err(|error| error.clone().into()).and_then(|op| {
                let inputs = Inputs {
                    current_key: read(&step.inputs.current_key),
                    current_value: read(&step.inputs.current_value),
                    indices: IndexInputs {
                        seqstarts: read(&step.inputs.seqstarts),
                        kvstarts: read(&step.inputs.kvstarts),
                        cachestarts: read(&step.inputs.cachestarts),
                        start_pos: read(&step.inputs.start_pos),
                        max_seqlen: read(&step.inputs.max_seqlen),
                        max_kvlen: read(&step.inputs.max_kvlen),
                    },
                };
                let call = op.check(&inputs, write(&mut cache), scale.as_mut().map(write))?;
                let output = || Tensor::zeros(case.types.t1, call.output_shape().to_vec()).expect("it fits in memory");
                let (mut key, mut value) = (output(), output());
                let outputs = kvcache_op::Outputs { key: write(&mut key), value: write(&mut value) };
                let mut problem = call.bind(outputs)?;
                let done = self.0.try_store(&mut problem).and_then(|()| self.0.try_load(&mut problem));
                done.map_err(|failure| Stop::Failure(failure.to_string()))?;
                Ok(Outputs { key, value })
            }) {
                Ok(outputs) => Outcome::Done(outputs),
                Err(Stop::Refusal(error)) => {
                    Outcome::Refused { kind: Some(error.kind().to_owned()), message: error.to_string() }
                }
                Err(Stop::Failure(message)) => return Err(message),
            };
            Ok(Played { outcome, cache: cache.clone(), scale: scale.clone() })
        };
        case.steps.iter().map(&mut play).collect()
    }
}
