//! The callable as an implementation of each suite.

use std::sync::{Mutex, PoisonError};

use kvcache_conformance::{CallResult, Expected, Implementation, Outcome, Suite};

use super::call::{Caller, Given, Stopped};

/// The callable, and what became of the case that was run last.
pub struct Callable<'a> {
    caller: &'a Caller,
    /// Whether a case is unsupported is known when it has been run: then its results are kept for the question that
    /// comes next.
    kept: Mutex<Option<Result<Vec<CallResult>, Stopped>>>,
}

impl<C: Suite> Implementation<C> for Callable<'_> {
    /// The results of the case that `cannot_run` has run just now.
    fn run(&self, case: &C) -> Result<Vec<CallResult>, String> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        let results = kept.unwrap_or_else(|| self.run_calls(case));
        results.map_err(|(Stopped::Unsupported(reason) | Stopped::Failed(reason))| reason)
    }

    fn cannot_run(&self, case: &C) -> Option<String> {
        let results = self.run_calls(case);
        let unsupported = match &results {
            Err(Stopped::Unsupported(reason)) => Some(reason.clone()),
            Ok(_) | Err(Stopped::Failed(_)) => None,
        };
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(results);
        unsupported
    }
}

impl<'a> Callable<'a> {
    pub fn new(caller: &'a Caller) -> Self {
        Self { caller, kept: Mutex::new(None) }
    }

    /// Makes a case's calls, each on the state that the one before has left.
    fn run_calls<C: Suite>(&self, case: &C) -> Result<Vec<CallResult>, Stopped> {
        let attributes = case.attributes();
        let ([mut cache, mut scale], has_cache) =
            (case.state().map(|tensor| tensor.cloned()), case.state()[0].is_some());
        let call = |(i, (inputs, expected)): (usize, (_, &Expected))| {
            let given = Given {
                op_type: case.page().op_type(),
                attributes: &attributes,
                outputs: case.outputs(),
                inputs,
                cache: cache.as_ref(),
                scale: scale.as_ref(),
                succeeds: matches!(expected, Expected::Success(_)),
            };
            let made = self.caller.call(&given).map_err(|stopped| stopped.in_call(i))?;
            (cache, scale) = (made.cache.clone(), made.scale.clone());
            let failed = |reason: String| Err(Stopped::Failed(reason).in_call(i));
            match &made.outcome {
                Outcome::Done(outputs) if outputs.len() != case.outputs().len() => {
                    failed(format!("got {} outputs, expected {}", outputs.len(), case.outputs().len()))
                }
                _ if has_cache && made.cache.is_none() => failed("got no cache".to_owned()),
                _ => Ok(made),
            }
        };
        case.calls().into_iter().enumerate().map(call).collect()
    }
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
