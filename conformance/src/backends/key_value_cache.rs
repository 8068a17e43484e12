//! `KeyValueCache` of dynamic and of static batching as the conformance suites see it.

use crate::backends::{read, write};
use crate::{CallResult, Case, Implementation, Outcome, Step, StepInputs, Tensor, static_batching};
use kvcache_op::{
    Backend, Call, ElementType, Error, IndexInputs, Inputs, KeyValueCache, Outputs, StaticCall, StaticInputs,
    StaticKeyValueCache, TensorMut, Workers,
};

/// A backend of the operator of dynamic batching, on some threads.
pub struct Operator<W> {
    /// The backend.
    pub backend: Backend,
    /// The threads.
    pub workers: W,
}

/// A backend of the operator of static batching, on some threads.
pub struct StaticOperator<W> {
    /// The backend.
    pub backend: Backend,
    /// The threads.
    pub workers: W,
}

impl<W: Workers> Implementation for Operator<W> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        Ok(run_calls(case, self.backend, |call, outputs| call.run(outputs, &self.workers)))
    }
}

impl<W: Workers> Implementation<static_batching::Case> for StaticOperator<W> {
    fn run(&self, case: &static_batching::Case) -> Result<Vec<CallResult>, String> {
        Ok(run_static_calls(case, self.backend, |call, outputs| call.run(outputs, &self.workers)))
    }
}

/// The results of a case's calls, which `run` makes once they are checked.
pub fn run_calls(
    case: &Case,
    backend: Backend,
    run: impl Fn(Call<'_>, Outputs<'_>) -> Result<(), Error>,
) -> Vec<CallResult> {
    let op = KeyValueCache::new(case.attributes.clone()).map(|op| op.with_backend(backend));
    results(case, |inputs: &StepInputs, cache, scale| {
        let inputs = inputs_of(inputs);
        let call = op.as_ref().map_err(Error::clone)?.check(&inputs, cache, scale)?;
        let mut outputs = zeros(case.types.t1, &call.output_shape());
        run(call, written(&mut outputs))?;
        Ok(outputs)
    })
}

/// The inputs of a call as the operator takes them.
pub fn inputs_of(inputs: &StepInputs) -> Inputs<'_> {
    Inputs {
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
    }
}

/// The results of a case's calls of static batching, which `run` makes once they are checked.
pub fn run_static_calls(
    case: &static_batching::Case,
    backend: Backend,
    run: impl Fn(StaticCall<'_>, Outputs<'_>) -> Result<(), Error>,
) -> Vec<CallResult> {
    let op = StaticKeyValueCache::new(case.attributes.clone()).map(|op| op.with_backend(backend));
    results(case, |inputs: &static_batching::StepInputs, cache, scale| {
        let inputs = static_inputs_of(inputs);
        let call = op.as_ref().map_err(Error::clone)?.check(&inputs, cache, scale)?;
        let mut outputs = zeros(case.types.t1, &call.output_shape());
        run(call, written(&mut outputs))?;
        Ok(outputs)
    })
}

/// The inputs of a call of static batching as the operator takes them.
pub fn static_inputs_of(inputs: &static_batching::StepInputs) -> StaticInputs<'_> {
    StaticInputs {
        current_key: read(&inputs.current_key),
        current_value: read(&inputs.current_value),
        start_pos: read(&inputs.start_pos),
    }
}

fn results<A, I>(
    case: &Case<A, I>,
    call: impl Fn(&I, TensorMut<'_>, Option<TensorMut<'_>>) -> Result<[Tensor; 2], Error>,
) -> Vec<CallResult> {
    let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
    let mut run = |step: &Step<I>| {
        let outcome = match call(&step.inputs, write(&mut cache), scale.as_mut().map(write)) {
            Ok(outputs) => Outcome::Done(outputs.into()),
            Err(error) => Outcome::Refused { kind: Some(error.kind().to_owned()), message: error.to_string() },
        };
        CallResult { outcome, cache: Some(cache.clone()), scale: scale.clone() }
    };
    case.steps.iter().map(&mut run).collect()
}

/// Outputs for a checked call to write.
fn zeros(t1: ElementType, shape: &[usize]) -> [Tensor; 2] {
    let output = || Tensor::zeros(t1, shape.to_vec());
    match (output(), output()) {
        (Some(key), Some(value)) => [key, value],
        _ => unreachable!("a checked call has outputs that fit in memory"),
    }
}

fn written([key, value]: &mut [Tensor; 2]) -> Outputs<'_> {
    Outputs { key: write(key), value: write(value) }
}
