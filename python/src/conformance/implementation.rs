//! The callable as an implementation of each suite.

use std::sync::{Mutex, PoisonError};

use kvcache_conformance::{CallResult, Case, Implementation, attention};

use super::call::{Caller, Given, Stopped};
use super::node_case::NodeCase;

/// The callable, and what became of the case that was run last.
pub struct Callable<'a, R> {
    caller: &'a Caller,
    /// Whether a case is unsupported is known when it has been run: then its results are kept for the question that
    /// comes next.
    kept: Mutex<Option<Result<Vec<R>, Stopped>>>,
}

impl<A, I> Implementation<A, I> for Callable<'_, CallResult>
where
    Case<A, I>: NodeCase<Result = CallResult>,
{
    fn run(&self, case: &Case<A, I>) -> Result<Vec<CallResult>, String> {
        self.results(case)
    }

    fn cannot_run(&self, case: &Case<A, I>) -> Option<String> {
        self.reason(case)
    }
}

impl attention::Implementation for Callable<'_, attention::CallResult> {
    fn run(&self, case: &attention::Case) -> Result<Vec<attention::CallResult>, String> {
        self.results(case)
    }

    fn cannot_run(&self, case: &attention::Case) -> Option<String> {
        self.reason(case)
    }
}

impl<'a, R> Callable<'a, R> {
    pub fn new(caller: &'a Caller) -> Self {
        Self { caller, kept: Mutex::new(None) }
    }

    /// Runs a case; says why it is unsupported, if it is.
    fn reason(&self, case: &impl NodeCase<Result = R>) -> Option<String> {
        let results = self.run_calls(case);
        let unsupported = match &results {
            Err(Stopped::Unsupported(reason)) => Some(reason.clone()),
            Ok(_) | Err(Stopped::Failed(_)) => None,
        };
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(results);
        unsupported
    }

    /// The results of the case that `reason` has run just now.
    fn results(&self, case: &impl NodeCase<Result = R>) -> Result<Vec<R>, String> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        let results = kept.unwrap_or_else(|| self.run_calls(case));
        results.map_err(|(Stopped::Unsupported(reason) | Stopped::Failed(reason))| reason)
    }

    /// Makes a case's calls, each on the state that the one before has left.
    fn run_calls<C: NodeCase<Result = R>>(&self, case: &C) -> Result<Vec<R>, Stopped> {
        let attributes = case.attributes();
        let [mut cache, mut scale] = case.state().map(|tensor| tensor.cloned());
        let call = |(i, (inputs, demanded)): (usize, (_, Result<_, _>))| {
            let given = Given {
                op_type: case.op_type(),
                attributes: &attributes,
                inputs,
                cache: cache.as_ref(),
                scale: scale.as_ref(),
                succeeds: demanded.is_ok(),
            };
            let made = self.caller.call(&given).map_err(|stopped| stopped.in_call(i))?;
            (cache, scale) = (made.cache.clone(), made.scale.clone());
            C::result(made.outcome, made.cache, made.scale).map_err(|reason| Stopped::Failed(reason).in_call(i))
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
