//! What the oracle does with a case, call by call.

use crate::case::{Case, Outputs, Step, Types};
use crate::implementation::{CallResult, Implementation, Outcome};
use crate::oracle::behavior::{Behavior, Outside, Verdict};
use crate::oracle::execute::{OutsideOfCache, State, empty, execute};
use crate::oracle::inputs::{Call, Inputs};
use crate::tensor::Tensor;

/// The operator as its specification has it, or with a mistake.
#[derive(Debug, Clone, Default)]
pub struct Oracle {
    /// What it does.
    pub behavior: Behavior,
}

/// What the oracle says that a call does, whose outputs are `O`.
#[derive(Debug, Clone)]
pub struct Prediction<O = Box<Outputs>> {
    /// How it ends.
    pub outcome: PredictedOutcome<O>,
    /// What `cache` and `scale` are then.
    pub state: PredictedState,
}

/// How a call ends.
#[derive(Debug, Clone)]
pub enum PredictedOutcome<O = Box<Outputs>> {
    /// It gives these outputs.
    Done(O),
    /// It gives some outputs: it is illegal, but made, or what was in the cache is not known.
    DoneSomehow,
    /// It is refused, as being of this kind and with this message.
    Refused(&'static str, String),
    /// It is refused although it is legal.
    RefusedWrongly,
    /// It reaches outside of the cache, which ends it or the process.
    Fails,
    /// Nothing is known: an earlier call failed.
    Unknown,
}

/// What `cache` and `scale` are after a call.
#[derive(Debug, Clone)]
pub enum PredictedState {
    /// These.
    Known(Tensor, Option<Tensor>),
    /// What they were before the call.
    Kept,
    /// Not what they were before the call.
    Changed,
    /// Nothing is known.
    Unknown,
}

/// What is known of `cache` and `scale` before a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Knowledge {
    Values,
    /// Their shapes alone: an earlier call has done with them what is not defined.
    Shapes,
    /// Not even whether the call is made.
    Nothing,
}

impl Oracle {
    /// What each call of a case does.
    pub fn predict<A, I: Inputs<A>>(&self, case: &Case<A, I>) -> Vec<Prediction> {
        let attributes = I::read_attributes(&case.attributes, &self.behavior);
        let mut state = State { cache: case.cache.clone(), scale: case.scale.clone() };
        let mut knowledge = Knowledge::Values;
        let steps = case.steps.iter();
        steps
            .map(|step| match knowledge {
                Knowledge::Nothing => Prediction { outcome: PredictedOutcome::Unknown, state: PredictedState::Unknown },
                _ => self.predict_call(case.types, &attributes, &step.inputs, &mut state, &mut knowledge),
            })
            .collect()
    }

    /// What one call of a case does, given this state.
    pub fn predict_one<A, I: Inputs<A>>(
        &self,
        case: &Case<A, I>,
        step: &Step<I>,
        (cache, scale): (&Tensor, Option<&Tensor>),
    ) -> Prediction {
        let attributes = I::read_attributes(&case.attributes, &self.behavior);
        let mut state = State { cache: cache.clone(), scale: scale.cloned() };
        self.predict_call(case.types, &attributes, &step.inputs, &mut state, &mut Knowledge::Values)
    }

    /// What a call does. `state` is that before it, as far as that is known, and becomes that after it.
    pub(super) fn predict_call<A, I: Inputs<A>>(
        &self,
        types: Types,
        attributes: &A,
        inputs: &I,
        state: &mut State,
        knowledge: &mut Knowledge,
    ) -> Prediction {
        let kept = match knowledge {
            Knowledge::Values => PredictedState::Known(state.cache.clone(), state.scale.clone()),
            _ => PredictedState::Kept,
        };
        let call = Call { types, attributes, inputs, cache: &state.cache, scale: state.scale.as_ref() };
        if let Some(refusal) = I::broken_rules(&call, &self.behavior).into_iter().next() {
            let verdict = match I::accepts(&call, &refusal, &self.behavior) {
                true => Verdict::Accepted,
                false => (self.behavior.verdict)(&refusal),
            };
            let outcome = PredictedOutcome::Refused(refusal.kind, refusal.message);
            // Where there is nothing that could be changed, a late refusal is as good as one in time.
            let (outcome, state) = match verdict {
                Verdict::RefusedLate if !state.cache.bytes().is_empty() => (outcome, PredictedState::Changed),
                Verdict::Refused | Verdict::RefusedLate => return Prediction { outcome, state: kept },
                Verdict::Accepted => (PredictedOutcome::DoneSomehow, PredictedState::Unknown),
            };
            *knowledge = Knowledge::Shapes;
            return Prediction { outcome, state };
        }
        if I::refuses(&call, &self.behavior) {
            return Prediction { outcome: PredictedOutcome::RefusedWrongly, state: kept };
        }
        if *knowledge == Knowledge::Shapes {
            return Prediction { outcome: PredictedOutcome::DoneSomehow, state: PredictedState::Unknown };
        }
        match execute(&call, &I::plan(&call, &self.behavior), &self.behavior) {
            Ok((outputs, after)) => {
                let known = PredictedState::Known(after.cache.clone(), after.scale.clone());
                *state = after;
                Prediction { outcome: PredictedOutcome::Done(Box::new(outputs)), state: known }
            }
            Err(OutsideOfCache) => {
                *knowledge = Knowledge::Nothing;
                Prediction { outcome: PredictedOutcome::Fails, state: PredictedState::Unknown }
            }
        }
    }

    /// The same oracle, which does this with what lies outside of the cache.
    #[must_use]
    pub fn with_outside(&self, outside: Outside) -> Self {
        Self { behavior: Behavior { outside, ..self.behavior.clone() } }
    }
}

/// Where a prediction leaves something open, the oracle as an implementation does something that fits it: outputs
/// without elements, a state of which one bit is turned, a refusal.
impl<A, I: Inputs<A>> Implementation<A, I> for Oracle {
    fn run(&self, case: &Case<A, I>) -> Result<Vec<CallResult>, String> {
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let result = |prediction: Prediction| {
            match prediction.state {
                PredictedState::Known(known, known_scale) => (cache, scale) = (known, known_scale),
                PredictedState::Changed => cache.bytes_mut().iter_mut().take(1).for_each(|byte| *byte ^= 1),
                PredictedState::Kept | PredictedState::Unknown => {}
            }
            let outcome = match prediction.outcome {
                PredictedOutcome::Done(outputs) => Outcome::Done(*outputs),
                PredictedOutcome::DoneSomehow | PredictedOutcome::Unknown => {
                    Outcome::Done(Outputs { key: empty(case.types.t1), value: empty(case.types.t1) })
                }
                PredictedOutcome::Refused(kind, message) => Outcome::Refused { kind: Some(kind.to_owned()), message },
                PredictedOutcome::RefusedWrongly => Outcome::refused("refused although it is legal"),
                PredictedOutcome::Fails => Outcome::refused("a slot outside of the cache"),
            };
            CallResult { outcome, cache: cache.clone(), scale: scale.clone() }
        };
        Ok(self.predict(case).into_iter().map(result).collect())
    }
}
