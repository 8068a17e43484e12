//! What is wrong with one call of any operator.

use std::slice::from_ref;

use kvcache_schema::ElementType;

use super::compare::{Accept, Pair, refusal, tensors};
use super::location::Location;
use super::mismatch::Mismatch;
use crate::case::{Expected, NanRule};
use crate::implementation::{CallResult, Demand, Outcome};
use crate::tensor::Tensor;

pub(crate) struct Call<'a> {
    pub(crate) expected: &'a Expected,
    pub(crate) demand: Demand,
    pub(crate) outputs: (&'static [&'static str], ElementType),
    pub(crate) nan: NanRule,
    /// `cache` and `scale` before it.
    pub(crate) before: [Option<&'a Tensor>; 2],
    pub(crate) result: &'a CallResult,
}

impl<'a> Call<'a> {
    /// What is wrong with it, if anything is. `locate` says what an element of the tensor called so stands for.
    pub(crate) fn mismatch(&self, locate: impl Fn(&str, &Tensor, usize) -> Option<Location>) -> Option<Mismatch> {
        let kept = || tensors(&self.state(self.before, NanRule::Exact), true, &locate);
        match (self.demand, self.expected, &self.result.outcome) {
            (Demand::Refusal, _, Outcome::Done(_)) => Some(Mismatch::NotRefused { expected: None }),
            (Demand::Refusal, _, Outcome::Refused { .. }) => kept(),
            (_, Expected::Refusal { kind, .. }, Outcome::Done(_)) => {
                Some(Mismatch::NotRefused { expected: Some(kind.clone()) })
            }
            (_, Expected::Refusal { kind, mentions }, Outcome::Refused { kind: named, message }) => {
                refusal(kind, mentions, named.as_deref(), message).or_else(kept)
            }
            (_, Expected::Success(_), Outcome::Refused { kind, message }) => {
                Some(Mismatch::Refused { error: kind.clone(), message: message.clone() })
            }
            (_, Expected::Success(after), Outcome::Done(outputs)) => {
                let (names, element) = self.outputs;
                let mismatch = |all: &[Tensor], tolerance: Option<&Tensor>| {
                    // In the order in which a call computes them.
                    let mut pairs = self.state([after.cache.as_ref(), after.scale.as_ref()], self.nan);
                    let accept = match tolerance {
                        None => Accept::Bits(self.nan),
                        Some(tolerance) => Accept::Within { tolerance, element },
                    };
                    let pair = |(i, name)| Pair { name, got: outputs.get(i), expected: all.get(i), accept };
                    pairs.extend(names.iter().copied().enumerate().map(pair));
                    tensors(&pairs, false, &locate)
                };
                // Of what is right in two ways, the first is told.
                let right = mismatch(&after.outputs, after.tolerance.as_ref());
                right.filter(|_| match &after.unrounded {
                    Some([output, tolerance]) => mismatch(from_ref(output), Some(tolerance)).is_some(),
                    None => true,
                })
            }
        }
    }

    /// The state after it, beside the one that is expected.
    fn state(&self, [cache, scale]: [Option<&'a Tensor>; 2], nan: NanRule) -> Vec<Pair<'a>> {
        let CallResult { cache: got, scale: got_scale, .. } = self.result;
        let pair = |name, got, expected| Pair { name, got, expected, accept: Accept::Bits(nan) };
        vec![pair("scale", got_scale.as_ref(), scale), pair("cache", got.as_ref(), cache)]
    }
}
