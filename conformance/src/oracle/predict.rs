//! What the oracle does with a case, call by call.

use std::rc::Rc;

use crate::case::{Case, Types};
use crate::oracle::attention::predict::Attention;
use crate::oracle::call::{Call, Inputs};
use crate::oracle::decisions::{Behavior, Outside};
use crate::oracle::execute::{OutsideOfCache, State, execute};
use crate::read::CaseInputs;
use crate::run::{CallResult, Implementation, Outcome};
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
pub struct Prediction<O = Vec<Tensor>> {
    /// How it ends.
    pub outcome: PredictedOutcome<O>,
    /// What `cache` and `scale` are then; `None` if nothing is known of them, because a call failed.
    pub state: Option<Rc<State>>,
}

/// How a call ends.
#[derive(Debug, Clone)]
pub enum PredictedOutcome<O = Vec<Tensor>> {
    /// It gives these outputs.
    Done(O),
    /// It is refused, as being of this kind.
    Refused(&'static str),
    /// It reaches outside of the cache, which ends it or the process.
    Fails,
    /// Nothing is known: an earlier call failed.
    Unknown,
}

impl Oracle {
    /// What each call of a case does, one after the other.
    pub fn predict<'a, A, I: Inputs<A>>(&'a self, case: &'a Case<A, I>) -> impl Iterator<Item = Prediction> + 'a {
        let mut state = Some(Rc::new(State { cache: case.cache.clone(), scale: case.scale.clone() }));
        case.steps.iter().map(move |step| self.predict_call(case.types, &case.attributes, &step.inputs, &mut state))
    }

    /// What a call does. `known` is the state before it, as far as it is known, and becomes that after it.
    pub(super) fn predict_call<A, I: Inputs<A>>(
        &self,
        types: Types,
        attributes: &A,
        inputs: &I,
        known: &mut Option<Rc<State>>,
    ) -> Prediction {
        let Some(state) = known else { return Prediction { outcome: PredictedOutcome::Unknown, state: None } };
        let call = Call { types, attributes, inputs, cache: &state.cache, scale: state.scale.as_ref() };
        let outcome = match I::broken_rules(&call).first() {
            Some(&kind) => PredictedOutcome::Refused(kind),
            None => match execute(&call, &self.behavior) {
                Ok((outputs, after)) => {
                    *known = Some(Rc::new(after));
                    PredictedOutcome::Done(outputs)
                }
                Err(OutsideOfCache) => {
                    *known = None;
                    PredictedOutcome::Fails
                }
            },
        };
        Prediction { outcome, state: known.clone() }
    }

    /// The same oracle, which does this with what lies outside of the cache.
    #[must_use]
    pub fn with_outside(&self, outside: Outside) -> Self {
        Self { behavior: Behavior { outside, ..self.behavior }, ..*self }
    }
}

/// The oracle as an implementation refuses a call that fails, and those behind it.
impl<A: Sync, I: Inputs<A> + CaseInputs<A>> Implementation<Case<A, I>> for Oracle {
    fn run(&self, case: &Case<A, I>) -> Result<Vec<CallResult>, String> {
        let mut state = (Some(case.cache.clone()), case.scale.clone());
        Ok(self.predict(case).map(|prediction| prediction.result(&mut state, |outputs| outputs)).collect())
    }
}

impl<O> Prediction<O> {
    /// It as the result of an implementation's call. `state` is the one before it, and becomes that after it.
    pub(super) fn result(
        self,
        state: &mut (Option<Tensor>, Option<Tensor>),
        outputs: impl FnOnce(O) -> Vec<Tensor>,
    ) -> CallResult {
        if let Some(known) = self.state {
            *state = (state.0.as_ref().map(|_| known.cache.clone()), known.scale.clone());
        }
        let outcome = match self.outcome {
            PredictedOutcome::Done(done) => Outcome::Done(outputs(done)),
            PredictedOutcome::Refused(kind) => {
                Outcome::Refused { kind: Some(kind.to_owned()), message: kind.to_owned() }
            }
            PredictedOutcome::Fails | PredictedOutcome::Unknown => Outcome::refused("a place outside of the cache"),
        };
        let (cache, scale) = state.clone();
        CallResult { outcome, cache, scale }
    }
}
