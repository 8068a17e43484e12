//! The backends of this project.

use kvcache_golden::performance::{Plan, Rounds, Timed, interleaved};
use kvcache_golden::{CallResult, Case, Outcome, Outputs, Tensor};
use kvcache_op::{AttentionBackend, Backend, Error, IndexInputs, Inputs, KeyValueCache, Serial};

use crate::attention_operators::Attention;
use crate::memory::{read, write};
use crate::operator::Operator;
use crate::static_operator::StaticOperator;

/// Stands for every backend.
const ALL: &str = "all";

/// Stands for the one that is chosen where none is named.
const CPU: &str = "cpu";

/// A backend, with the attention kernel of its name if there is one, on one thread.
pub struct OfBackend {
    /// Runs the cases of `KeyValueCache`.
    pub dynamic: Operator<Serial>,
    /// Runs those of static batching.
    pub of_static_batching: StaticOperator<Serial>,
    /// Runs those of attention.
    pub attention: Attention<Serial>,
}

/// The names of the backends that this machine can run, [`CPU`] and [`ALL`].
pub fn names() -> Vec<&'static str> {
    Backend::all().map(|backend| backend.name()).chain([CPU, ALL]).collect()
}

/// The backend called `name`, or every one, by their names.
pub fn backends(name: &str) -> Vec<(&'static str, OfBackend)> {
    let name = if name == CPU { Backend::default().name() } else { name };
    let chosen = Backend::all().filter(|backend| name == ALL || backend.name() == name);
    chosen.map(|backend| (backend.name(), OfBackend::new(backend))).collect()
}

impl OfBackend {
    fn new(backend: Backend) -> Self {
        let attention = AttentionBackend::all().find(|attention| attention.name() == backend.name());
        Self {
            dynamic: Operator { backend, workers: Serial },
            of_static_batching: StaticOperator { backend, workers: Serial },
            attention: Attention { backend: attention.unwrap_or_default(), store: backend, workers: Serial },
        }
    }
}

/// A call is checked and run each time, as in a decode loop; its tensors are made once.
impl Timed for Operator<Serial> {
    fn time(&self, case: &Case, plan: Plan) -> Result<(Rounds, CallResult), String> {
        let [step] = &case.steps[..] else { return Err(format!("{} calls, expected one", case.steps.len())) };
        let op = KeyValueCache::new(case.attributes.clone()).map_err(|error| error.to_string())?;
        let op = op.with_backend(self.backend);
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
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
        let shape = {
            let call = op.check(&inputs, write(&mut cache), scale.as_mut().map(write));
            call.map_err(|error| error.to_string())?.output_shape().to_vec()
        };
        let output = || Tensor::zeros(case.types.t1, shape.clone()).ok_or("outputs that fit in no memory");
        let (mut key, mut value) = (output()?, output()?);
        let call = || {
            let call = op.check(&inputs, write(&mut cache), scale.as_mut().map(write))?;
            call.run(kvcache_op::Outputs { key: write(&mut key), value: write(&mut value) }, &self.workers)
        };
        let rounds = interleaved(plan, call).map_err(|error: Error| error.to_string())?;
        Ok((rounds, CallResult { outcome: Outcome::Done(Outputs { key, value }), cache, scale }))
    }
}
