//! The callable as an implementation of each suite.

use std::sync::{Mutex, PoisonError};

use kvcache_conformance::attention::{self, Operator};
use kvcache_conformance::{
    CallResult, Case, Implementation, NamedInputs, Outcome, Outputs, Step, Tensor, static_batching,
};
use kvcache_op::schema::{self, AttributeSpec};
use kvcache_op::{AttentionAttributes, Attributes, CacheAttentionAttributes, StaticAttributes};

use super::call::{Caller, Given, Made, Stopped};

/// The callable, and what became of the case that was run last.
pub struct Callable<'a, R> {
    caller: &'a Caller,
    /// Whether a case is unsupported is known when it has been run: then its results are kept for the question that
    /// comes next.
    kept: Mutex<Option<Result<Vec<R>, Stopped>>>,
}

impl<'a, R> Callable<'a, R> {
    pub fn new(caller: &'a Caller) -> Self {
        Self { caller, kept: Mutex::new(None) }
    }

    /// Runs a case; says why it is unsupported, if it is.
    fn cannot_run(&self, run: impl FnOnce() -> Result<Vec<R>, Stopped>) -> Option<String> {
        let results = run();
        let unsupported = match &results {
            Err(Stopped::Unsupported(reason)) => Some(reason.clone()),
            Ok(_) | Err(Stopped::Failed(_)) => None,
        };
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(results);
        unsupported
    }

    /// The results of the case that `cannot_run` has run just now.
    fn results(&self, run: impl FnOnce() -> Result<Vec<R>, Stopped>) -> Result<Vec<R>, String> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.unwrap_or_else(run).map_err(|(Stopped::Unsupported(reason) | Stopped::Failed(reason))| reason)
    }
}

impl Implementation for Callable<'_, CallResult> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        self.results(|| self.stored(case, &values(&Attributes::SPEC, &case.attributes)))
    }

    fn cannot_run(&self, case: &Case) -> Option<String> {
        self.cannot_run(|| self.stored(case, &values(&Attributes::SPEC, &case.attributes)))
    }
}

impl Implementation<StaticAttributes, static_batching::StepInputs> for Callable<'_, CallResult> {
    fn run(&self, case: &static_batching::Case) -> Result<Vec<CallResult>, String> {
        self.results(|| self.stored(case, &values(&StaticAttributes::SPEC, &case.attributes)))
    }

    fn cannot_run(&self, case: &static_batching::Case) -> Option<String> {
        self.cannot_run(|| self.stored(case, &values(&StaticAttributes::SPEC, &case.attributes)))
    }
}

impl attention::Implementation for Callable<'_, attention::CallResult> {
    fn run(&self, case: &attention::Case) -> Result<Vec<attention::CallResult>, String> {
        self.results(|| self.attended(case))
    }

    fn cannot_run(&self, case: &attention::Case) -> Option<String> {
        self.cannot_run(|| self.attended(case))
    }
}

impl Callable<'_, CallResult> {
    /// Runs a case of `KeyValueCache` with these attributes.
    fn stored<A, I: NamedInputs>(
        &self,
        case: &Case<A, I>,
        attributes: &[(&'static str, i64)],
    ) -> Result<Vec<CallResult>, Stopped> {
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let call = |(i, step): (usize, &Step<I>)| {
            let given = Given {
                op_type: schema::NAME,
                attributes,
                inputs: step.inputs.named(),
                cache: Some(&cache),
                scale: scale.as_ref(),
                succeeds: matches!(step.expected, kvcache_conformance::Expected::Success(_)),
            };
            let made = self.caller.call(&given).map_err(|stopped| stopped.in_call(i))?;
            let result = stored_result(made).map_err(|stopped| stopped.in_call(i))?;
            (cache, scale) = (result.cache.clone(), result.scale.clone());
            Ok(result)
        };
        case.steps.iter().enumerate().map(call).collect()
    }
}

/// What a call of `KeyValueCache` has given.
fn stored_result(made: Made) -> Result<CallResult, Stopped> {
    let outcome = match made.outcome {
        Outcome::Refused { kind, message } => Outcome::Refused { kind, message },
        Outcome::Done(outputs) => {
            let [key, value] = <[Tensor; 2]>::try_from(outputs)
                .map_err(|outputs| Stopped::Failed(format!("got {} outputs, expected key and value", outputs.len())))?;
            Outcome::Done(Outputs { key, value })
        }
    };
    let cache = made.cache.ok_or_else(|| Stopped::Failed("got no cache".to_owned()))?;
    Ok(CallResult { outcome, cache, scale: made.scale })
}

impl Callable<'_, attention::CallResult> {
    /// Runs a case of an attention operator.
    fn attended(&self, case: &attention::Case) -> Result<Vec<attention::CallResult>, Stopped> {
        let attributes = attention_values(case.operator, &case.attributes);
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let call = |(i, step): (usize, &attention::Step)| {
            let given = Given {
                op_type: case.operator.name(),
                attributes: &attributes,
                inputs: step.inputs.iter().map(|(name, tensor)| (*name, tensor)).collect(),
                cache: cache.as_ref(),
                scale: scale.as_ref(),
                succeeds: matches!(step.expected, kvcache_conformance::Expected::Success(_)),
            };
            let made = self.caller.call(&given).map_err(|stopped| stopped.in_call(i))?;
            let result = attended_result(made).map_err(|stopped| stopped.in_call(i))?;
            (cache, scale) = (result.cache.clone(), result.scale.clone());
            Ok(result)
        };
        case.steps.iter().enumerate().map(call).collect()
    }
}

/// What a call of an attention operator has given.
fn attended_result(made: Made) -> Result<attention::CallResult, Stopped> {
    let outcome = match made.outcome {
        Outcome::Refused { kind, message } => Outcome::Refused { kind, message },
        Outcome::Done(outputs) => {
            let [attn_output] = <[Tensor; 1]>::try_from(outputs)
                .map_err(|outputs| Stopped::Failed(format!("got {} outputs, expected attn_output", outputs.len())))?;
            Outcome::Done(attn_output)
        }
    };
    Ok(attention::CallResult { outcome, cache: made.cache, scale: made.scale })
}

/// The attributes by their names.
fn values<A>(specs: &[AttributeSpec<A>], attributes: &A) -> Vec<(&'static str, i64)> {
    specs.iter().map(|spec| (spec.name, spec.value(attributes))).collect()
}

/// The attributes that the operator has, by their names.
fn attention_values(operator: Operator, attributes: &CacheAttentionAttributes) -> Vec<(&'static str, i64)> {
    let mut named = values(&AttentionAttributes::SPEC, &attributes.attention);
    if operator == Operator::MultiHeadCacheAttention {
        let cache = values(&Attributes::SPEC, &attributes.cache);
        named.extend(cache.into_iter().filter(|(name, _)| *name != CacheAttentionAttributes::NOT_AN_ATTRIBUTE));
    }
    named
}

impl Stopped {
    /// Says in which call this was.
    fn in_call(self, i: usize) -> Self {
        match self {
            Self::Failed(reason) => Self::Failed(format!("call {i}: {reason}")),
            Self::Unsupported(reason) => Self::Unsupported(reason),
        }
    }
}
