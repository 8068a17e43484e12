//! Compares the result of a call with the expected one.

use half::f16;
use kvcache_schema::ElementType;

use super::case::After;
use super::implementation::CallResult;
use crate::case::{Expected, NanRule};
use crate::compare::{refusal, tensors};
use crate::implementation::Outcome;
use crate::tensor::Tensor;

/// The state before a call.
pub(super) struct Before<'a> {
    pub(super) cache: Option<&'a Tensor>,
    pub(super) scale: Option<&'a Tensor>,
}

/// What is wrong with what a call did, if anything is; `t1` is the type of its output.
pub(super) fn difference(
    expected: &Expected<After>,
    got: &CallResult,
    before: &Before<'_>,
    t1: ElementType,
) -> Option<String> {
    let state = |what: &str, cache: Option<&Tensor>, scale: Option<&Tensor>| {
        tensors(&format!("cache{what}"), got.cache.as_ref(), cache, NanRule::Exact)
            .or_else(|| tensors(&format!("scale{what}"), got.scale.as_ref(), scale, NanRule::Exact))
    };
    match (expected, &got.outcome) {
        (Expected::Success(after), Outcome::Done(output)) => {
            within(output, after, t1).or_else(|| state("", after.cache.as_ref(), after.scale.as_ref()))
        }
        (Expected::Success(_), Outcome::Refused { message, .. }) => Some(format!("refused: {message}")),
        (Expected::Refusal { kind, .. }, Outcome::Done(_)) => Some(format!("not refused, expected {kind}")),
        (Expected::Refusal { kind, mentions }, Outcome::Refused { kind: named, message }) => {
            refusal(kind, mentions, named.as_deref(), message)
                .or_else(|| state(" of a refused call", before.cache, before.scale))
        }
    }
}

/// The first element that is farther from the expected one than its tolerance.
fn within(got: &Tensor, after: &After, t1: ElementType) -> Option<String> {
    let After { attn_output, tolerance, .. } = after;
    if (got.element(), got.shape()) != (t1, attn_output.shape()) {
        return Some(format!("attn_output is {got:?}, expected {t1}{:?}", attn_output.shape()));
    }
    let rows = numbers(got).into_iter().zip(numbers(attn_output)).zip(numbers(tolerance));
    let (i, ((got, expected), tolerance)) =
        rows.enumerate().find(|&(_, ((got, expected), tolerance))| !is_within(got, expected, tolerance))?;
    Some(format!("attn_output is {got} at element {i}, expected {expected} within {tolerance}"))
}

fn is_within(got: f64, expected: f64, tolerance: f64) -> bool {
    match expected.is_finite() {
        true => (got - expected).abs() <= tolerance,
        false => got == expected || got.is_nan() && expected.is_nan(),
    }
}

/// The elements of a float tensor.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    match tensor.element() {
        ElementType::Float16 => {
            tensor.bytes().as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f64()).collect()
        }
        _ => tensor.bytes().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes).into()).collect(),
    }
}
