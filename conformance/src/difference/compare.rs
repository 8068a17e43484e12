//! Compares tensors and refusals with the expected ones, and says what is wrong with one call.

use kvcache_schema::ElementType;

use super::location::Location;
use super::mismatch::{Differing, Elements, Form, Mismatch, Value};
use super::slots::coordinates;
use crate::case::{Expected, NanRule};
use crate::run::{CallResult, Demand, Outcome};
use crate::tensor::Tensor;

/// A tensor of a call, and the one that is expected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair<'a> {
    pub(crate) name: &'static str,
    pub(crate) got: Option<&'a Tensor>,
    pub(crate) expected: Option<&'a Tensor>,
    pub(crate) accept: Accept<'a>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Accept<'a> {
    /// Those with the same bits and, where the rule says so, any NaN for a NaN.
    Bits(NanRule),
    /// Those of type `element` within a tolerance for each, float32. Where the expected one is not finite, they must be
    /// the same infinity or a NaN.
    Within { tolerance: &'a Tensor, element: ElementType },
}

/// The first difference of a call's tensors, in the order in which they are given. `locate` says what an element of the
/// tensor called so stands for.
pub(crate) fn tensors(
    pairs: &[Pair<'_>],
    refused: bool,
    locate: impl Fn(&str, &Tensor, usize) -> Option<Location>,
) -> Option<Mismatch> {
    let differing = pairs.iter().map(|pair| (pair, pair.differing()));
    let mut wrong = differing.filter(|(_, indices)| indices.as_ref().is_none_or(|indices| !indices.is_empty()));
    let (pair, first) = wrong.next()?;
    let also = wrong.map(|(pair, indices)| {
        let elements = pair.expected.map_or(0, Value::count);
        Differing { tensor: pair.name, differing: indices.map_or(elements, |indices| indices.len()), elements }
    });
    let also = also.collect();
    let (Some(got), Some(expected), Some(indices)) = (pair.got, pair.expected, first) else {
        return Some(Mismatch::Form {
            tensor: pair.name,
            got: pair.got.map(Form::from),
            expected: pair.expected_form(),
            refused,
        });
    };
    let index = *indices.first()?;
    let (got, value) = (Value::at(got, index), Value::at(expected, index));
    let tolerance = match pair.accept {
        Accept::Bits(_) => None,
        Accept::Within { tolerance, .. } => Value::at(tolerance, index).float(),
    };
    Some(Mismatch::Elements(Box::new(Elements {
        tensor: pair.name,
        index,
        coordinates: coordinates(expected.shape(), index),
        location: locate(pair.name, expected, index),
        got,
        expected: value,
        tolerance,
        ulps: got.ulps(value.rounded(got.element)),
        differing: indices.len(),
        elements: Value::count(expected),
        refused,
        also,
    })))
}

impl Pair<'_> {
    fn expected_form(&self) -> Option<Form> {
        let form = self.expected.map(Form::from)?;
        Some(match self.accept {
            Accept::Bits(_) => form,
            Accept::Within { element, .. } => Form { element, ..form },
        })
    }

    /// The indices of the elements that differ; none if its type or shape does, or whether it is there.
    fn differing(&self) -> Option<Vec<usize>> {
        if self.got.map(Form::from) != self.expected_form() {
            return None;
        }
        let (Some(got), Some(expected)) = (self.got, self.expected) else { return Some(Vec::new()) };
        if matches!(self.accept, Accept::Bits(_)) && got.bytes() == expected.bytes() {
            return Some(Vec::new());
        }
        let differs = |&i: &usize| !self.accept.passes(i, Value::at(got, i), Value::at(expected, i));
        Some((0..Value::count(expected)).filter(differs).collect())
    }
}

impl Accept<'_> {
    fn passes(&self, i: usize, got: Value, expected: Value) -> bool {
        match self {
            Self::Bits(NanRule::Exact) => got.bits == expected.bits,
            Self::Bits(NanRule::Any) => got.bits == expected.bits || got.is_nan() && expected.is_nan(),
            Self::Within { tolerance, .. } => {
                let (Some(got), Some(expected)) = (got.float(), expected.float()) else { return false };
                match Value::at(tolerance, i).float() {
                    Some(tolerance) if expected.is_finite() => (got - expected).abs() <= tolerance,
                    _ => got == expected || got.is_nan() && expected.is_nan(),
                }
            }
        }
    }
}

/// What is wrong with a refusal by itself; `named` is the kind of error that the implementation gives, if it has kinds.
pub(crate) fn refusal(kind: &str, mentions: &[String], named: Option<&str>, message: &str) -> Option<Mismatch> {
    let message = message.to_owned();
    if let Some(named) = named.filter(|named| *named != kind) {
        return Some(Mismatch::RefusedAs { got: named.to_owned(), expected: kind.to_owned(), message });
    }
    let mention = mentions.iter().find(|mention| !message.contains(*mention))?.clone();
    Some(Mismatch::NotMentioned { mention, message })
}

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
                let mismatch = |all: &[Tensor], tolerance: &[Tensor]| {
                    // In the order in which a call computes them.
                    let mut pairs = self.state([after.cache.as_ref(), after.scale.as_ref()], self.nan);
                    let accept = |i: usize| match tolerance.get(i) {
                        None => Accept::Bits(self.nan),
                        // The second is the mass.
                        Some(tolerance) => {
                            Accept::Within { tolerance, element: if i == 0 { element } else { ElementType::Float32 } }
                        }
                    };
                    let pair = |(i, name)| Pair { name, got: outputs.get(i), expected: all.get(i), accept: accept(i) };
                    pairs.extend(names.iter().copied().enumerate().map(pair));
                    tensors(&pairs, false, &locate)
                };
                // Of what is right in two ways, the first is told.
                let right = mismatch(&after.outputs, &after.tolerance);
                right.filter(|_| match &after.unrounded {
                    Some([outputs, tolerance]) => mismatch(outputs, tolerance).is_some(),
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
