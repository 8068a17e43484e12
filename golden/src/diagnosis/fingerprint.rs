//! What a call did, and what it is predicted to do, as numbers that are equal where tensors are.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use kvcache_schema::ElementType;

use crate::case::{Case, NanRule, Outputs};
use crate::implementation::{CallResult, Outcome};
use crate::oracle::{Inputs, Oracle, PredictedOutcome, PredictedState};
use crate::tensor::Tensor;

/// What a call is predicted to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Predicted {
    outcome: OutcomePrint,
    state: StatePrint,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutcomePrint {
    Done(u64),
    DoneSomehow,
    Refused(&'static str),
    RefusedWrongly,
    Fails,
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatePrint {
    Known(u64),
    Kept,
    Changed,
    Unknown,
}

/// What a call did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Made {
    outcome: MadeOutcome,
    /// The state after it, with NaN compared as the case says.
    state: u64,
    /// Whether it left the state as it was, to the bit.
    kept: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum MadeOutcome {
    Done(u64),
    Refused(Option<String>),
}

impl Predicted {
    /// What each call of a case does on an oracle.
    pub(super) fn calls<A, I: Inputs<A>>(oracle: &Oracle, case: &Case<A, I>) -> Vec<Self> {
        let nan = case.nan;
        let predictions = oracle.predict(case).into_iter().map(|prediction| Self {
            outcome: match prediction.outcome {
                PredictedOutcome::Done(outputs) => OutcomePrint::Done(of_outputs(&outputs, nan)),
                PredictedOutcome::DoneSomehow => OutcomePrint::DoneSomehow,
                PredictedOutcome::Refused(kind, _) => OutcomePrint::Refused(kind),
                PredictedOutcome::RefusedWrongly => OutcomePrint::RefusedWrongly,
                PredictedOutcome::Fails => OutcomePrint::Fails,
                PredictedOutcome::Unknown => OutcomePrint::Unknown,
            },
            state: match prediction.state {
                PredictedState::Known(cache, scale) => StatePrint::Known(of_state(&cache, scale.as_ref(), nan)),
                PredictedState::Kept => StatePrint::Kept,
                PredictedState::Changed => StatePrint::Changed,
                PredictedState::Unknown => StatePrint::Unknown,
            },
        });
        predictions.collect()
    }

    /// Whether the call reaches outside of the cache.
    pub(super) fn fails(&self) -> bool {
        self.outcome == OutcomePrint::Fails
    }

    /// Whether the call is legal: what is right of it says.
    pub(super) fn is_legal(&self) -> bool {
        !matches!(self.outcome, OutcomePrint::Refused(_))
    }

    /// Whether something is known of how the call ends.
    pub(super) fn tells(&self) -> bool {
        !matches!(self.outcome, OutcomePrint::Fails | OutcomePrint::Unknown)
    }

    /// Whether a legal call is refused.
    pub(super) fn refuses(&self) -> bool {
        self.outcome == OutcomePrint::RefusedWrongly
    }

    /// Whether outputs and state are predicted.
    pub(super) fn is_full(&self) -> bool {
        matches!((self.outcome, self.state), (OutcomePrint::Done(_), StatePrint::Known(_)))
    }

    /// Whether a call did what is predicted.
    pub(super) fn fits(&self, made: &Made) -> bool {
        let outcome = match (self.outcome, &made.outcome) {
            // An illegal call that is made may also end in an error, when it has written something.
            (OutcomePrint::DoneSomehow, MadeOutcome::Refused(_)) => !made.kept,
            (OutcomePrint::Unknown, _)
            | (OutcomePrint::DoneSomehow, MadeOutcome::Done(_))
            | (OutcomePrint::RefusedWrongly | OutcomePrint::Fails, MadeOutcome::Refused(_)) => true,
            (OutcomePrint::Done(predicted), MadeOutcome::Done(made)) => predicted == *made,
            (OutcomePrint::Refused(kind), MadeOutcome::Refused(made)) => {
                made.as_deref().is_none_or(|made| made == kind)
            }
            _ => false,
        };
        outcome
            && match self.state {
                StatePrint::Known(state) => state == made.state,
                StatePrint::Kept => made.kept,
                StatePrint::Changed => !made.kept,
                StatePrint::Unknown => true,
            }
    }
}

impl Made {
    /// Whether the call was refused.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.outcome, MadeOutcome::Refused(_))
    }

    /// What each call of a case did.
    pub(super) fn calls<A, I>(case: &Case<A, I>, results: &[CallResult]) -> Vec<Self> {
        let mut before = (&case.cache, case.scale.as_ref());
        let made = results.iter().map(|CallResult { outcome, cache, scale }| {
            let kept = before == (cache, scale.as_ref());
            before = (cache, scale.as_ref());
            Self {
                outcome: match outcome {
                    Outcome::Done(outputs) => MadeOutcome::Done(of_outputs(outputs, case.nan)),
                    Outcome::Refused { kind, .. } => MadeOutcome::Refused(kind.clone()),
                },
                state: of_state(cache, scale.as_ref(), case.nan),
                kept,
            }
        });
        made.collect()
    }
}

fn of_outputs(Outputs { key, value }: &Outputs, nan: NanRule) -> u64 {
    let mut hasher = DefaultHasher::new();
    hash(key, nan, &mut hasher);
    hash(value, nan, &mut hasher);
    hasher.finish()
}

fn of_state(cache: &Tensor, scale: Option<&Tensor>, nan: NanRule) -> u64 {
    let mut hasher = DefaultHasher::new();
    hash(cache, nan, &mut hasher);
    if let Some(scale) = scale {
        hash(scale, nan, &mut hasher);
    }
    hasher.finish()
}

fn hash(tensor: &Tensor, nan: NanRule, hasher: &mut DefaultHasher) {
    let element = tensor.element();
    (element, tensor.shape()).hash(hasher);
    if nan == NanRule::Exact || !matches!(element, ElementType::Float32 | ElementType::Float16) {
        tensor.bytes().hash(hasher);
        return;
    }
    for bytes in tensor.bytes().chunks_exact(element.align()) {
        if is_nan(bytes) { "nan".hash(hasher) } else { bytes.hash(hasher) }
    }
}

/// Whether the little-endian bytes of a float32 or float16 are those of a NaN.
fn is_nan(bytes: &[u8]) -> bool {
    match *bytes {
        [a, b] => half::f16::from_le_bytes([a, b]).is_nan(),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]).is_nan(),
        _ => false,
    }
}
