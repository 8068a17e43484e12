//! What the oracle does with a case, call by call.

use crate::case::{Case, Outputs, Step, Types};
use crate::implementation::{CallResult, Implementation, Outcome};
use crate::oracle::attention::decisions::Attention;
use crate::oracle::call::{Call, Inputs};
use crate::oracle::decisions::{Behavior, Outside};
use crate::oracle::execute::execute;
use crate::oracle::heads::{OutsideOfCache, State};
use crate::tensor::Tensor;

/// The operator as its specification has it, or with a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Oracle {
    /// What it does.
    pub behavior: Behavior,
    /// How it attends.
    pub attention: Attention,
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
    /// It is refused, as being of this kind and with this message.
    Refused(&'static str, String),
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
    /// Nothing is known: a call failed.
    Unknown,
}

impl<O> Prediction<O> {
    /// A call that is refused, or fails, in this state, which it leaves.
    pub(super) fn ended(outcome: PredictedOutcome<O>, state: Option<&State>) -> Self {
        let known = |state: &State| PredictedState::Known(state.cache.clone(), state.scale.clone());
        Self { outcome, state: state.map_or(PredictedState::Unknown, known) }
    }
}

impl Oracle {
    /// What each call of a case does.
    pub fn predict<A, I: Inputs<A>>(&self, case: &Case<A, I>) -> Vec<Prediction> {
        let mut state = Some(State { cache: case.cache.clone(), scale: case.scale.clone() });
        let call = |step: &Step<I>| self.predict_call(case.types, &case.attributes, &step.inputs, &mut state);
        case.steps.iter().map(call).collect()
    }

    /// What one call of a case does, given this state.
    pub fn predict_one<A, I: Inputs<A>>(
        &self,
        case: &Case<A, I>,
        step: &Step<I>,
        (cache, scale): (&Tensor, Option<&Tensor>),
    ) -> Prediction {
        let mut state = Some(State { cache: cache.clone(), scale: scale.cloned() });
        self.predict_call(case.types, &case.attributes, &step.inputs, &mut state)
    }

    /// What a call does. `known` is the state before it, as far as it is known, and becomes that after it.
    pub(super) fn predict_call<A, I: Inputs<A>>(
        &self,
        types: Types,
        attributes: &A,
        inputs: &I,
        known: &mut Option<State>,
    ) -> Prediction {
        let Some(state) = known else { return Prediction::ended(PredictedOutcome::Unknown, None) };
        let call = Call { types, attributes, inputs, cache: &state.cache, scale: state.scale.as_ref() };
        if let Some(refusal) = I::broken_rules(&call, &self.behavior).into_iter().next() {
            let outcome = PredictedOutcome::Refused(refusal.kind, refusal.message);
            return Prediction::ended(outcome, Some(state));
        }
        let outcome = match execute(&call, &I::plan(&call, &self.behavior), &self.behavior) {
            Ok((outputs, after)) => {
                *state = after;
                PredictedOutcome::Done(Box::new(outputs))
            }
            Err(OutsideOfCache) => {
                *known = None;
                PredictedOutcome::Fails
            }
        };
        Prediction::ended(outcome, known.as_ref())
    }

    /// The same oracle, which does this with what lies outside of the cache.
    #[must_use]
    pub fn with_outside(&self, outside: Outside) -> Self {
        Self { behavior: Behavior { outside, ..self.behavior }, ..*self }
    }
}

/// The oracle as an implementation refuses a call that fails, and those behind it.
impl<A, I: Inputs<A>> Implementation<A, I> for Oracle {
    fn run(&self, case: &Case<A, I>) -> Result<Vec<CallResult>, String> {
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let result = |Prediction { outcome, state }: Prediction| {
            if let PredictedState::Known(known, known_scale) = state {
                (cache, scale) = (known, known_scale);
            }
            CallResult { outcome: outcome.done(|outputs| *outputs), cache: cache.clone(), scale: scale.clone() }
        };
        Ok(self.predict(case).into_iter().map(result).collect())
    }
}

impl<O> PredictedOutcome<O> {
    /// It as the outcome of an implementation's call.
    pub(super) fn done<T>(self, outputs: impl FnOnce(O) -> T) -> Outcome<T> {
        match self {
            Self::Done(done) => Outcome::Done(outputs(done)),
            Self::Refused(kind, message) => Outcome::Refused { kind: Some(kind.to_owned()), message },
            Self::Fails | Self::Unknown => Outcome::refused("a place outside of the cache"),
        }
    }
}
