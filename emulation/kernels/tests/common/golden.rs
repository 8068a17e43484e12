//! Golden cases on a kernel that is none of `op`'s backends; `op` checks the calls.

use kvcache_conformance::backends::{read, write};
use kvcache_conformance::{CallResult, Case, Implementation, Outcome, Outputs, Step, Tensor, static_batching};
use kvcache_emulation_kernels::EmulatedCuda;
use kvcache_kernels::Problem;
use kvcache_op::{
    ElementType, Error, IndexInputs, Inputs, KeyValueCache, StaticAttributes, StaticInputs, StaticKeyValueCache,
};

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

impl Player {
    fn run_problem(&self, problem: &mut Problem<'_>) -> Result<(), Stop> {
        let done = self.0.try_store(problem).and_then(|()| self.0.try_load(problem));
        done.map_err(|failure| Stop::Failure(failure.to_string()))
    }
}

/// Outputs of a call: they are zeros, of T1 and this shape.
fn outputs(t1: ElementType, shape: &[usize]) -> Outputs {
    let output = || Tensor::zeros(t1, shape.to_vec()).expect("it fits in memory");
    Outputs { key: output(), value: output() }
}

/// What became of a call.
fn outcome(result: Result<Outputs, Stop>) -> Result<Outcome, String> {
    match result {
        Ok(outputs) => Ok(Outcome::Done(outputs)),
        Err(Stop::Refusal(error)) => {
            Ok(Outcome::Refused { kind: Some(error.kind().to_owned()), message: error.to_string() })
        }
        Err(Stop::Failure(message)) => Err(message),
    }
}

impl Implementation for Player {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let op = KeyValueCache::new(case.attributes.clone());
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let mut run = |step: &Step| {
            let result = op.as_ref().map_err(|error| error.clone().into()).and_then(|op| {
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
                let mut outputs = outputs(case.types.t1, &call.output_shape());
                let mut problem = call.bind(written(&mut outputs))?;
                self.run_problem(&mut problem)?;
                Ok(outputs)
            });
            Ok(CallResult { outcome: outcome(result)?, cache: cache.clone(), scale: scale.clone() })
        };
        case.steps.iter().map(&mut run).collect()
    }
}

impl Implementation<StaticAttributes, static_batching::StepInputs> for Player {
    fn run(&self, case: &static_batching::Case) -> Result<Vec<CallResult>, String> {
        let op = StaticKeyValueCache::new(case.attributes.clone());
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let mut run = |step: &static_batching::Step| {
            let result = op.as_ref().map_err(|error| error.clone().into()).and_then(|op| {
                let inputs = StaticInputs {
                    current_key: read(&step.inputs.current_key),
                    current_value: read(&step.inputs.current_value),
                    start_pos: read(&step.inputs.start_pos),
                };
                let call = op.check(&inputs, write(&mut cache), scale.as_mut().map(write))?;
                let mut outputs = outputs(case.types.t1, &call.output_shape());
                call.with_problem(written(&mut outputs), |problem| self.run_problem(problem))??;
                Ok(outputs)
            });
            Ok(CallResult { outcome: outcome(result)?, cache: cache.clone(), scale: scale.clone() })
        };
        case.steps.iter().map(&mut run).collect()
    }
}

/// Outputs as the operator writes them.
fn written(outputs: &mut Outputs) -> kvcache_op::Outputs<'_> {
    kvcache_op::Outputs { key: write(&mut outputs.key), value: write(&mut outputs.value) }
}
