//! What a call did, and what it is predicted to do, as numbers that are equal where tensors are.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use kvcache_schema::ElementType;

use super::diagnosable::{Diagnosable, MadeCall, Predict};
use super::near::{self, Near};
use super::refusals::Refusal;
use super::scope::Facts;
use crate::case::{Case, NanRule, Outputs};
use crate::implementation::{CallResult, Outcome};
use crate::mistakes::Mistake;
use crate::oracle::{Inputs, Oracle, PredictedOutcome, PredictedState};
use crate::suite::Suite;
use crate::tensor::Tensor;

/// What a call is predicted to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predicted {
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

/// What is predicted of cache and scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StatePrint {
    Known(u64),
    Kept,
    Changed,
    Unknown,
}

/// What a call did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    outcome: MadeOutcome,
    state: MadeState,
}

/// What cache and scale were after a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MadeState {
    /// Both, with NaN compared as the case says.
    pub(super) print: u64,
    /// Whether the call left them as they were, to the bit.
    pub(super) kept: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum MadeOutcome {
    Done(u64),
    Refused(Refusal),
}

impl<A, I: Inputs<A>> Diagnosable for Case<A, I>
where
    Self: Suite<Result = CallResult>,
{
    type Predicted = Predicted;
    type Made = Made;

    fn rule_of(mistake: &Mistake) -> Option<&'static str> {
        I::of(mistake.rule, mistake.static_rule)
    }

    fn predicted(&self, oracle: &Oracle, _right: Option<&[Predicted]>) -> Vec<Predicted> {
        let predictions = oracle.predict(self).into_iter().map(|prediction| Predicted {
            outcome: match prediction.outcome {
                PredictedOutcome::Done(outputs) => OutcomePrint::Done(of_outputs(&outputs, self.nan)),
                PredictedOutcome::DoneSomehow => OutcomePrint::DoneSomehow,
                PredictedOutcome::Refused(kind, _) => OutcomePrint::Refused(kind),
                PredictedOutcome::RefusedWrongly => OutcomePrint::RefusedWrongly,
                PredictedOutcome::Fails => OutcomePrint::Fails,
                PredictedOutcome::Unknown => OutcomePrint::Unknown,
            },
            state: StatePrint::of(prediction.state, self.nan),
        });
        predictions.collect()
    }

    fn made(&self, results: &[CallResult]) -> Vec<Made> {
        let mut before = (&self.cache, self.scale.as_ref());
        let made = results.iter().map(|CallResult { outcome, cache, scale }| {
            let kept = before == (cache, scale.as_ref());
            before = (cache, scale.as_ref());
            Made {
                outcome: match outcome {
                    Outcome::Done(outputs) => MadeOutcome::Done(of_outputs(outputs, self.nan)),
                    Outcome::Refused { kind, message } => MadeOutcome::Refused(Refusal::new(kind.as_deref(), message)),
                },
                state: MadeState { print: of_state(cache, scale.as_ref(), self.nan), kept },
            }
        });
        made.collect()
    }

    fn near(&self, results: &[CallResult]) -> Option<Near> {
        near::near(self, results)
    }

    fn facts(&self) -> Facts {
        Facts::of(self)
    }

    fn size(&self) -> usize {
        self.cache.bytes().len()
    }
}

impl MadeCall for Made {
    fn refusal(&self) -> Option<&Refusal> {
        match &self.outcome {
            MadeOutcome::Refused(refusal) => Some(refusal),
            MadeOutcome::Done(_) => None,
        }
    }

    fn is_kept(&self) -> bool {
        self.state.kept
    }
}

impl Predict<Made> for Predicted {
    fn fails(&self) -> bool {
        self.outcome == OutcomePrint::Fails
    }

    fn is_legal(&self) -> bool {
        !matches!(self.outcome, OutcomePrint::Refused(_))
    }

    fn refuses(&self) -> bool {
        self.outcome == OutcomePrint::RefusedWrongly
    }

    fn tells(&self) -> bool {
        !matches!(self.outcome, OutcomePrint::Fails | OutcomePrint::Unknown)
    }

    fn is_full(&self) -> bool {
        matches!((self.outcome, self.state), (OutcomePrint::Done(_), StatePrint::Known(_))) || self.is_refused_late()
    }

    fn fits(&self, made: &Made) -> bool {
        let outcome = match (self.outcome, &made.outcome) {
            // An illegal call that is made may also end in an error, when it has written something.
            (OutcomePrint::DoneSomehow, MadeOutcome::Refused(_)) => !made.state.kept,
            (OutcomePrint::Unknown, _)
            | (OutcomePrint::DoneSomehow, MadeOutcome::Done(_))
            | (OutcomePrint::RefusedWrongly | OutcomePrint::Fails, MadeOutcome::Refused(_)) => true,
            (OutcomePrint::Done(predicted), MadeOutcome::Done(made)) => predicted == *made,
            (OutcomePrint::Refused(kind), MadeOutcome::Refused(made)) => made.has_kind(kind),
            _ => false,
        };
        outcome && self.state.fits(&made.state)
    }

    fn is_wrong(&self, right: &Self) -> bool {
        self != right
    }

    fn is_never_right(&self, right: &Self) -> bool {
        let is_open = match self.outcome {
            OutcomePrint::Refused(_) => self.is_refused_late() && self.outcome == right.outcome,
            OutcomePrint::DoneSomehow | OutcomePrint::Unknown => right.is_legal(),
            _ => false,
        };
        self != right && !is_open
    }

    fn is_refused_late(&self) -> bool {
        matches!((self.outcome, self.state), (OutcomePrint::Refused(_), StatePrint::Changed))
    }
}

impl StatePrint {
    pub(super) fn of(state: PredictedState, nan: NanRule) -> Self {
        match state {
            PredictedState::Known(cache, scale) => Self::Known(of_state(&cache, scale.as_ref(), nan)),
            PredictedState::Kept => Self::Kept,
            PredictedState::Changed => Self::Changed,
            PredictedState::Unknown => Self::Unknown,
        }
    }

    /// Whether the state is what is predicted.
    pub(super) fn fits(self, made: &MadeState) -> bool {
        match self {
            Self::Known(state) => state == made.print,
            Self::Kept => made.kept,
            // Who writes before one rule is checked may check another one in time.
            Self::Changed | Self::Unknown => true,
        }
    }
}

fn of_outputs(Outputs { key, value }: &Outputs, nan: NanRule) -> u64 {
    let mut hasher = DefaultHasher::new();
    hash(key, nan, &mut hasher);
    hash(value, nan, &mut hasher);
    hasher.finish()
}

/// `cache` and `scale` as one number.
pub(super) fn of_state(cache: &Tensor, scale: Option<&Tensor>, nan: NanRule) -> u64 {
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
