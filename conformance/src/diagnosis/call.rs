//! What a call is predicted to do, and what it did.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use kvcache_schema::ElementType;

use crate::case::NanRule;
use crate::implementation::Outcome;
use crate::oracle::{PredictedOutcome, PredictedState, Prediction};
use crate::tensor::Tensor;

/// What a call is predicted to do, whose outputs are `R`.
#[derive(Debug)]
pub struct Predicted<R> {
    pub(super) outcome: Ended<R>,
    /// Cache and scale as one number; `None` if nothing is known of them.
    state: Option<u64>,
}

#[derive(Debug)]
pub(super) enum Ended<R> {
    Done(R),
    Refused(&'static str),
    Fails,
    Unknown,
}

/// What a call did.
#[derive(Debug)]
pub struct Made<M> {
    /// Its outputs, or the kind of its refusal, if that has one.
    outcome: Result<M, Option<String>>,
    state: u64,
}

/// The outputs that are predicted, as results `M` are compared with them.
pub trait Results<M> {
    /// Whether a call gave them.
    fn fits(&self, made: &M) -> bool;

    /// Whether they are not `right` by more than the tolerance of what is right and, so many times, their own.
    fn differs(&self, right: &Self, own: f64) -> bool;
}

/// Outputs whose bits count are a number that is equal where they are.
impl Results<u64> for u64 {
    fn fits(&self, made: &u64) -> bool {
        self == made
    }

    fn differs(&self, right: &Self, _own: f64) -> bool {
        self != right
    }
}

impl<M> Made<M> {
    pub(super) fn new<O>(outcome: &Outcome<O>, results: impl Fn(&O) -> M, state: u64) -> Self {
        let outcome = match outcome {
            Outcome::Done(outputs) => Ok(results(outputs)),
            Outcome::Refused { kind, .. } => Err(kind.clone()),
        };
        Self { outcome, state }
    }

    /// Whether the call was refused.
    pub(super) fn is_refused(&self) -> bool {
        self.outcome.is_err()
    }
}

impl<R> Predicted<R> {
    pub(super) fn new<O>(prediction: Prediction<O>, results: impl Fn(O) -> R, nan: NanRule) -> Self {
        let outcome = match prediction.outcome {
            PredictedOutcome::Done(outputs) => Ended::Done(results(outputs)),
            PredictedOutcome::Refused(kind, _) => Ended::Refused(kind),
            PredictedOutcome::Fails => Ended::Fails,
            PredictedOutcome::Unknown => Ended::Unknown,
        };
        let state = match prediction.state {
            PredictedState::Known(cache, scale) => Some(print([Some(&cache), scale.as_ref()], nan)),
            PredictedState::Unknown => None,
        };
        Self { outcome, state }
    }

    /// Whether the call reaches outside of the cache.
    pub(super) fn fails(&self) -> bool {
        matches!(self.outcome, Ended::Fails)
    }

    /// Whether something is known of how the call ends.
    pub(super) fn tells(&self) -> bool {
        !matches!(self.outcome, Ended::Fails | Ended::Unknown)
    }

    /// Whether it gives outputs.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.outcome, Ended::Done(_))
    }

    /// Whether a call did what is predicted. One that fails by mistake has no kind of error.
    pub(super) fn fits<M>(&self, made: &Made<M>) -> bool
    where
        R: Results<M>,
    {
        let outcome = match (&self.outcome, &made.outcome) {
            (Ended::Unknown, _) => true,
            (Ended::Done(predicted), Ok(made)) => predicted.fits(made),
            (Ended::Refused(kind), Err(made)) => made.as_deref().is_none_or(|made| made == *kind),
            (Ended::Fails, Err(kind)) => kind.is_none(),
            (Ended::Done(_), Err(_)) | (Ended::Refused(_) | Ended::Fails, Ok(_)) => false,
        };
        outcome && self.state.is_none_or(|state| state == made.state)
    }

    /// Whether it is wrong where `right` is what the call should do.
    pub(super) fn is_wrong<M>(&self, right: &Self) -> bool
    where
        R: Results<M>,
    {
        self.differs(right, 0.0)
    }

    /// Whether nothing that fits it is right.
    pub(super) fn is_never_right<M>(&self, right: &Self) -> bool
    where
        R: Results<M>,
    {
        self.differs(right, 1.0) && !matches!(self.outcome, Ended::Unknown)
    }

    fn differs<M>(&self, right: &Self, own: f64) -> bool
    where
        R: Results<M>,
    {
        let outcome = match (&self.outcome, &right.outcome) {
            (Ended::Done(wrong), Ended::Done(right)) => wrong.differs(right, own),
            (Ended::Refused(wrong), Ended::Refused(right)) => wrong != right,
            _ => true,
        };
        outcome || self.state != right.state
    }
}

/// Tensors as one number, with NaN compared as the rule says.
pub(super) fn print<'a>(tensors: impl IntoIterator<Item = Option<&'a Tensor>>, nan: NanRule) -> u64 {
    let mut hasher = DefaultHasher::new();
    for tensor in tensors.into_iter().flatten() {
        let element = tensor.element();
        (element, tensor.shape()).hash(&mut hasher);
        if nan == NanRule::Exact || !matches!(element, ElementType::Float32 | ElementType::Float16) {
            tensor.bytes().hash(&mut hasher);
            continue;
        }
        for bytes in tensor.bytes().chunks_exact(element.align()) {
            if is_nan(bytes) { "nan".hash(&mut hasher) } else { bytes.hash(&mut hasher) }
        }
    }
    hasher.finish()
}

/// Whether the little-endian bytes of a float32 or float16 are those of a NaN.
fn is_nan(bytes: &[u8]) -> bool {
    match *bytes {
        [a, b] => half::f16::from_le_bytes([a, b]).is_nan(),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]).is_nan(),
        _ => false,
    }
}
