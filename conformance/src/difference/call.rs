//! What is wrong with one call of any operator.

use super::compare::{Pair, refusal, tensors};
use super::location::Location;
use super::mismatch::{Difference, Mismatch};
use crate::case::Expected;
use crate::demand::Demand;
use crate::implementation::Outcome;
use crate::tensor::Tensor;

/// What a call must do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Must<'a> {
    /// Give its outputs, and change the state.
    Succeed,
    /// Be refused with this kind of error, by a message that contains these words.
    BeRefused { kind: &'a str, mentions: &'a [String] },
    /// Be refused, however.
    BeRefusedSomehow,
}

/// A call, its outcome and its tensors.
pub(crate) struct Call<'a> {
    pub(crate) must: Must<'a>,
    /// The kind and the message of its refusal, if it was refused.
    pub(crate) refused: Option<(Option<&'a str>, &'a str)>,
    /// The state beside the one before the call.
    pub(crate) before: Vec<Pair<'a>>,
    /// State and outputs beside the expected ones, in the order in which a call computes them.
    pub(crate) after: Vec<Pair<'a>>,
}

impl<'a> Must<'a> {
    /// What a call must do of which a case expects this.
    pub(crate) fn of<A>(expected: &'a Expected<A>, demand: Demand) -> Self {
        match (demand, expected) {
            (Demand::Refusal, _) => Self::BeRefusedSomehow,
            (Demand::AsExpected, Expected::Success(_)) => Self::Succeed,
            (Demand::AsExpected, Expected::Refusal { kind, mentions }) => Self::BeRefused { kind, mentions },
        }
    }
}

impl Call<'_> {
    /// What is wrong with it, if anything is. `locate` says what an element of the tensor called so stands for.
    pub(crate) fn mismatch(
        &self,
        locate: impl Fn(&'static str, &Tensor, usize) -> Option<Location>,
    ) -> Option<Mismatch> {
        match (self.must, self.refused) {
            (Must::Succeed, None) => tensors(&self.after, false, locate),
            (Must::Succeed, Some((error, message))) => {
                Some(Mismatch::Refused { error: error.map(str::to_owned), message: message.to_owned() })
            }
            (Must::BeRefused { kind, .. }, None) => Some(Mismatch::NotRefused { expected: Some(kind.to_owned()) }),
            (Must::BeRefusedSomehow, None) => Some(Mismatch::NotRefused { expected: None }),
            (Must::BeRefused { kind, mentions }, Some((named, message))) => {
                refusal(kind, mentions, named, message).or_else(|| tensors(&self.before, true, locate))
            }
            (Must::BeRefusedSomehow, Some(_)) => tensors(&self.before, true, locate),
        }
    }
}

/// The kind and the message of an outcome that is a refusal.
pub(crate) fn refused<O>(outcome: &Outcome<O>) -> Option<(Option<&str>, &str)> {
    match outcome {
        Outcome::Done(_) => None,
        Outcome::Refused { kind, message } => Some((kind.as_deref(), message)),
    }
}

/// The first difference between the calls of a case and their results. `mismatch` compares a call with its result, and
/// has the result of the call before.
pub(crate) fn first<S, R>(
    steps: &[S],
    results: &[R],
    mismatch: impl Fn(&S, Option<&R>, &R) -> Option<Mismatch>,
) -> Option<Difference> {
    if results.len() != steps.len() {
        let mismatch = Mismatch::Calls { got: results.len(), expected: steps.len() };
        return Some(Difference { call: None, mismatch });
    }
    let mut calls = steps.iter().zip(results).enumerate();
    calls.find_map(|(i, (step, result))| {
        let previous = i.checked_sub(1).map(|i| &results[i]);
        Some(Difference { call: Some(i), mismatch: mismatch(step, previous, result)? })
    })
}
