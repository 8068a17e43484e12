//! What a call of attention did, and what it is predicted to do: the state as a number, the output element by element,
//! since it has a tolerance.

use std::rc::Rc;

use half::f16;
use kvcache_schema::ElementType;

use super::diagnosable::{Diagnosable, MadeCall, Predict};
use super::fingerprint::{MadeState, StatePrint, of_state};
use super::near::{Near, loading};
use super::refusals::Refusal;
use super::scope::Facts;
use crate::attention::{CallResult, Case, Operator, Step};
use crate::case::NanRule;
use crate::difference::{Value, integers};
use crate::implementation::Outcome;
use crate::mistakes::{Mistake, attention_rule};
use crate::oracle::attention::{Attended, AttentionPrediction, KnownCall};
use crate::oracle::{Oracle, PredictedOutcome, PredictedState};
use crate::suite::Suite;
use crate::tensor::Tensor;

/// So many products of a query's and a key's element are as much work as a byte of a tensor.
const PRODUCTS_OF_A_BYTE: usize = 64;

/// A tolerance beyond so many times the largest value says nothing.
const MOST_TOLERANCE: f64 = 1024.0;

/// What a call is predicted to do.
#[derive(Debug)]
pub struct PredictedAttention {
    outcome: PredictedEnd,
    state: StatePrint,
    /// What it computes, if it is what is right.
    known: Option<KnownCall>,
}

#[derive(Debug)]
enum PredictedEnd {
    /// The output is shared with what is right where it is the same.
    Done(Rc<Attended>),
    DoneSomehow,
    Refused(&'static str),
    RefusedWrongly,
    Fails,
    Unknown,
}

/// What a call did.
#[derive(Debug, Clone)]
pub struct MadeAttention {
    outcome: MadeEnd,
    state: MadeState,
}

#[derive(Debug, Clone)]
enum MadeEnd {
    Done { element: ElementType, shape: Vec<usize>, values: Vec<f64> },
    Refused(Refusal),
}

impl Diagnosable for Case {
    type Predicted = PredictedAttention;
    type Made = MadeAttention;

    fn rule_of(mistake: &Mistake) -> Option<&'static str> {
        attention_rule(mistake)
    }

    fn predicted(&self, oracle: &Oracle, right: Option<&[PredictedAttention]>) -> Vec<PredictedAttention> {
        let shared = |i: usize, output: Rc<Attended>| match right.and_then(|right| Some(&right.get(i)?.outcome)) {
            Some(PredictedEnd::Done(right)) if *right == output => Rc::clone(right),
            _ => output,
        };
        let known: Vec<_> = right.unwrap_or_default().iter().map(|right| right.known.as_ref()).collect();
        let predictions = oracle.predict_attention_from(self, &known).into_iter().enumerate();
        let predicted = predictions.map(|(i, (prediction, computed))| PredictedAttention {
            outcome: match prediction.outcome {
                PredictedOutcome::Done(output) => PredictedEnd::Done(shared(i, output)),
                PredictedOutcome::DoneSomehow => PredictedEnd::DoneSomehow,
                PredictedOutcome::Refused(kind, _) => PredictedEnd::Refused(kind),
                PredictedOutcome::RefusedWrongly => PredictedEnd::RefusedWrongly,
                PredictedOutcome::Fails => PredictedEnd::Fails,
                PredictedOutcome::Unknown => PredictedEnd::Unknown,
            },
            // Where there is no cache, nothing can change.
            state: match self.cache {
                Some(_) => StatePrint::of(prediction.state, NanRule::Exact),
                None => StatePrint::Kept,
            },
            known: computed.filter(|_| right.is_none()),
        });
        predicted.collect()
    }

    fn made(&self, results: &[CallResult]) -> Vec<MadeAttention> {
        let mut before = (self.cache.as_ref(), self.scale.as_ref());
        let made = results.iter().map(|CallResult { outcome, cache, scale }| {
            let kept = before == (cache.as_ref(), scale.as_ref());
            before = (cache.as_ref(), scale.as_ref());
            MadeAttention {
                outcome: match outcome {
                    Outcome::Done(output) => MadeEnd::Done {
                        element: output.element(),
                        shape: output.shape().to_vec(),
                        values: numbers(output),
                    },
                    Outcome::Refused { kind, message } => MadeEnd::Refused(Refusal::new(kind.as_deref(), message)),
                },
                state: MadeState {
                    print: cache.as_ref().map_or(0, |cache| of_state(cache, scale.as_ref(), NanRule::Exact)),
                    kept,
                },
            }
        });
        made.collect()
    }

    fn near(&self, results: &[CallResult]) -> Option<Near> {
        let quantizes = self.operator == Operator::MultiHeadCacheAttention && self.attributes.cache.quant_bit != 0;
        if !quantizes || results.len() != self.steps.len() {
            return None;
        }
        let (mut near, mut before) = (Near::default(), (&self.cache, &self.scale));
        for (step, CallResult { outcome, cache, scale }) in self.steps.iter().zip(results) {
            let right = self.only_call(&Oracle::default(), step, before)?;
            match (right.outcome, outcome) {
                (PredictedOutcome::Done(_), Outcome::Done(output)) => {
                    let PredictedState::Known(right_cache, right_scale) = &right.state else { return None };
                    near.compare_state((right_cache, right_scale.as_ref()), (cache.as_ref()?, scale.as_ref()), true)?;
                    let loaded = self.only_call(&loading(), step, (cache, scale))?;
                    let PredictedOutcome::Done(attended) = loaded.outcome else { return None };
                    let is_alike = (attended.element, &attended.shape[..]) == (output.element(), output.shape());
                    (is_alike && is_within(&attended, &numbers(output))).then_some(())?;
                }
                (PredictedOutcome::Refused(..), Outcome::Refused { .. }) if before == (cache, scale) => {}
                _ => return None,
            }
            before = (cache, scale);
        }
        Some(near).filter(|near| *near != Near::default())
    }

    fn facts(&self) -> Facts {
        Facts::of_features(&self.features())
    }

    fn size(&self) -> usize {
        let size = |tensor: &Tensor| tensor.bytes().len();
        let tensors: usize = self.steps.iter().flat_map(|step| step.inputs.values()).chain(&self.cache).map(size).sum();
        // The keys of a sequence are at most those of its call.
        let keys = |step: &Step| step.inputs.get("kvstarts").and_then(|starts| integers(starts).last().copied());
        let products = |step: &Step| {
            let keys = usize::try_from(keys(step).unwrap_or(0)).unwrap_or(0);
            step.inputs.get("query").map_or(0, |query| Value::count(query).saturating_mul(keys))
        };
        self.steps.iter().map(products).fold(0, usize::saturating_add) / PRODUCTS_OF_A_BYTE + tensors
    }
}

impl Case {
    /// What an oracle says of one call, given this state.
    fn only_call(
        &self,
        oracle: &Oracle,
        step: &Step,
        (cache, scale): (&Option<Tensor>, &Option<Tensor>),
    ) -> Option<AttentionPrediction> {
        let mut one = self.clone();
        (one.cache, one.scale, one.steps) = (cache.clone(), scale.clone(), vec![step.clone()]);
        oracle.predict_attention(&one).pop()
    }
}

/// The elements of a tensor; none if they are not of a float type.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    (0..Value::count(tensor)).filter_map(|i| Value::at(tensor, i).float()).collect()
}

impl MadeCall for MadeAttention {
    fn refusal(&self) -> Option<&Refusal> {
        match &self.outcome {
            MadeEnd::Refused(refusal) => Some(refusal),
            MadeEnd::Done { .. } => None,
        }
    }

    fn is_kept(&self) -> bool {
        self.state.kept
    }
}

impl Predict<MadeAttention> for PredictedAttention {
    fn fails(&self) -> bool {
        matches!(self.outcome, PredictedEnd::Fails)
    }

    fn is_legal(&self) -> bool {
        !matches!(self.outcome, PredictedEnd::Refused(_))
    }

    fn refuses(&self) -> bool {
        matches!(self.outcome, PredictedEnd::RefusedWrongly)
    }

    fn tells(&self) -> bool {
        !matches!(self.outcome, PredictedEnd::Fails | PredictedEnd::Unknown)
    }

    fn is_full(&self) -> bool {
        matches!(self.outcome, PredictedEnd::Done(_)) || self.is_refused_late()
    }

    fn fits(&self, made: &MadeAttention) -> bool {
        let outcome = match (&self.outcome, &made.outcome) {
            // An illegal call that is made may also end in an error, when it has written something.
            (PredictedEnd::DoneSomehow, MadeEnd::Refused(_)) => !made.state.kept,
            (PredictedEnd::Unknown, _)
            | (PredictedEnd::DoneSomehow, MadeEnd::Done { .. })
            | (PredictedEnd::RefusedWrongly | PredictedEnd::Fails, MadeEnd::Refused(_)) => true,
            (PredictedEnd::Done(predicted), MadeEnd::Done { element, shape, values }) => {
                predicted.element == *element
                    && predicted.shape == *shape
                    && values.len() == predicted.values.len()
                    && says_something(predicted)
                    && is_within(predicted, values)
            }
            (PredictedEnd::Refused(kind), MadeEnd::Refused(made)) => made.has_kind(kind),
            _ => false,
        };
        outcome && self.state.fits(&made.state)
    }

    fn is_wrong(&self, right: &Self) -> bool {
        self.differs(right, 0.0)
    }

    fn is_never_right(&self, right: &Self) -> bool {
        let is_open = match self.outcome {
            PredictedEnd::Refused(_) => self.is_refused_late(),
            PredictedEnd::DoneSomehow | PredictedEnd::Unknown => right.is_legal(),
            _ => false,
        };
        self.differs(right, 1.0) && !is_open
    }

    fn is_refused_late(&self) -> bool {
        matches!((&self.outcome, self.state), (PredictedEnd::Refused(_), StatePrint::Changed))
    }
}

impl PredictedAttention {
    /// Whether it is not `right` by more than the tolerance of what is right and, so many times, its own.
    fn differs(&self, right: &Self, own: f64) -> bool {
        let outcome = match (&self.outcome, &right.outcome) {
            (PredictedEnd::Done(wrong), PredictedEnd::Done(right)) => {
                !Rc::ptr_eq(wrong, right)
                    && (wrong.element != right.element || wrong.shape != right.shape || !is_near(wrong, right, own))
            }
            (PredictedEnd::Refused(wrong), PredictedEnd::Refused(right)) => wrong != right,
            (PredictedEnd::DoneSomehow, PredictedEnd::DoneSomehow) => false,
            _ => true,
        };
        outcome || self.state != right.state
    }
}

/// Whether `wrong` is within the tolerance of what is right and, so many times, its own: as it is, and rounded as
/// implementations give it.
fn is_near(wrong: &Attended, right: &Attended, own: f64) -> bool {
    let allowed = right.tolerance.iter().zip(&wrong.tolerance).map(|(right, wrong)| right + own * wrong);
    let pairs = right.values.iter().zip(&wrong.values).zip(allowed);
    pairs.into_iter().all(|((&expected, &got), allowed)| {
        passes(expected, got, allowed) && passes(expected, rounded(right.element, got), allowed)
    })
}

/// Whether a prediction is not so vague that almost everything is within its tolerance, as where errors of large scores
/// are multiplied with weights far beyond 1.
fn says_something(predicted: &Attended) -> bool {
    let largest = |values: &[f64]| values.iter().filter(|x| x.is_finite()).fold(0.0, |a: f64, b| a.max(b.abs()));
    largest(&predicted.tolerance) <= MOST_TOLERANCE * largest(&predicted.values).max(1.0)
}

/// Whether values are within the tolerance of what is predicted. What is too large for the type is an infinity.
fn is_within(predicted: &Attended, values: &[f64]) -> bool {
    let beyond = |x: f64| if rounded(predicted.element, x).is_infinite() { f64::INFINITY.copysign(x) } else { x };
    let pairs = predicted.values.iter().zip(values).zip(&predicted.tolerance);
    pairs.into_iter().all(|((&predicted, &made), &tolerance)| passes(beyond(predicted), made, tolerance))
}

/// A number of a float type.
fn rounded(element: ElementType, x: f64) -> f64 {
    match element {
        ElementType::Float16 => f16::from_f64(x).to_f64(),
        _ => f64::from(x as f32),
    }
}

/// Whether a number is the expected one, within a tolerance; one that is not finite is the same infinity or a NaN.
fn passes(expected: f64, got: f64, tolerance: f64) -> bool {
    match expected.is_finite() {
        true => (got - expected).abs() <= tolerance,
        false => got == expected || got.is_nan() && expected.is_nan(),
    }
}
