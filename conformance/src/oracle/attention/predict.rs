//! What the oracle does with a case of attention, call by call.

use std::convert::Infallible;
use std::rc::Rc;

use kvcache_schema::Attributes;

use crate::attention::{Case, Operator, Step};
use crate::case::{NanRule, StepInputs, Types};
use crate::implementation::Implementation;
use crate::oracle::attention::attend::{Attend, Stop, numbers};
use crate::oracle::attention::attended::Attended;
use crate::oracle::attention::ragged::Ragged;
use crate::oracle::attention::rules::legal;
use crate::oracle::execute::{State, empty};
use crate::oracle::predict::{Oracle, PredictedOutcome, Prediction};
use crate::result::{CallResult, Outcome};
use crate::tensor::Tensor;

/// What the oracle says that a call of attention does.
pub type AttentionPrediction = Prediction<Rc<Attended>>;

impl Oracle {
    /// What each call of a case of attention does, one after the other. With `made`, what calls did, it ends with the call
    /// that did something else.
    pub fn predict_attention<'a>(
        &'a self,
        case: &'a Case,
        made: Option<&'a [CallResult]>,
    ) -> impl Iterator<Item = AttentionPrediction> + 'a {
        // Without a cache there is a state of nothing, which every call keeps.
        let cache = case.cache.clone().unwrap_or_else(|| empty(case.t1));
        let mut state = Some(Rc::new(State { cache, scale: case.scale.clone() }));
        let prediction =
            move |(i, step)| self.predict_step(case, step, &mut state, made.and_then(|made: &[_]| made.get(i)));
        case.steps.iter().enumerate().map_while(prediction)
    }

    /// What a call does; `None` if it made something else. `known` is the state before it, as far as it is known, and
    /// becomes that after it.
    fn predict_step(
        &self,
        case: &Case,
        step: &Step,
        known: &mut Option<Rc<State>>,
        made: Option<&CallResult>,
    ) -> Option<AttentionPrediction> {
        let loaded = match self.load(case, step, known) {
            Ok(loaded) => loaded,
            Err(outcome) => return Some(Prediction { outcome, state: known.clone() }),
        };
        let made = made.and_then(|made| match &made.outcome {
            Outcome::Done(outputs) => Some((made, outputs.first()?)),
            Outcome::Refused { .. } => None,
        });
        if let (Some((made, _)), Some(state)) = (made, &known)
            && !state.is_of(made, NanRule::Exact)
        {
            return None;
        }
        let mask = step.inputs.get("attn_mask").map(numbers).unwrap_or_default();
        let attend = Attend {
            attention: &self.attention,
            outside: self.behavior.outside,
            ragged: &Ragged::new(case.t1, &case.attributes.attention, step),
            packed: [numbers(step.input("query")), numbers(&loaded[0]), numbers(&loaded[1]), mask],
            made: made.map(|(_, output)| output),
        };
        let outcome = match attend.output() {
            Ok(output) => PredictedOutcome::Done(Rc::new(output)),
            Err(Stop::Contradicted) => return None,
            Err(Stop::OutsideOfCache) => {
                *known = None;
                PredictedOutcome::Fails
            }
        };
        Some(Prediction { outcome, state: known.clone() })
    }

    /// The keys and values that a call attends to: of one over a cache those that it loads, with the state after that in
    /// `known`. Without them, how the call ends.
    fn load(
        &self,
        case: &Case,
        step: &Step,
        known: &mut Option<Rc<State>>,
    ) -> Result<Vec<Tensor>, PredictedOutcome<Rc<Attended>>> {
        let Some(state) = known else { return Err(PredictedOutcome::Unknown) };
        // The cache is stored to only where the attention is legal, too.
        legal(case.operator, &case.attributes.attention, case.t1, step)
            .map_err(|broken| PredictedOutcome::Refused(broken[0]))?;
        if case.operator == Operator::MultiHeadAttention {
            let input = |output| step.input(["key", "value"][self.behavior.outputs.source(output)]).clone();
            return Ok(vec![input(0), input(1)]);
        }
        let t3 = state.scale.as_ref().map(Tensor::element);
        let types = Types { t1: case.t1, t2: state.cache.element(), t3 };
        let Ok(inputs) = StepInputs::of(|name| Ok::<_, Infallible>(step.input(name).clone()));
        match self.predict_call::<Attributes, _>(types, &case.attributes.cache, &inputs, known).outcome {
            PredictedOutcome::Done(loaded) => Ok(loaded),
            PredictedOutcome::Refused(kind) => Err(PredictedOutcome::Refused(kind)),
            PredictedOutcome::Fails => Err(PredictedOutcome::Fails),
            PredictedOutcome::Unknown => Err(PredictedOutcome::Unknown),
        }
    }
}

/// The oracle as an implementation refuses a call that fails, and those behind it.
impl Implementation<Case> for Oracle {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let mut state = (case.cache.clone(), case.scale.clone());
        let predictions = self.predict_attention(case, None);
        Ok(predictions.map(|prediction| prediction.result(&mut state, |output| vec![output.tensor()])).collect())
    }
}
