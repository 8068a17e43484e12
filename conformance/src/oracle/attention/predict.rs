//! What the oracle does with a case of attention, call by call.

use std::rc::Rc;

use kvcache_schema::Attributes;

use crate::attention::{Case, Operator, Step};
use crate::case::{NanRule, StepInputs, Types};
use crate::implementation::Implementation;
use crate::oracle::attention::attend::{Attend, Stop};
use crate::oracle::attention::attended::{Attended, Given};
use crate::oracle::attention::ragged::Ragged;
use crate::oracle::attention::rules::legal;
use crate::oracle::decisions::Behavior;
use crate::oracle::execute::{State, empty};
use crate::oracle::predict::{Oracle, PredictedOutcome, Prediction};
use crate::result::{CallResult, Outcome};
use crate::tensor::Tensor;

/// What the oracle says that a call of attention does.
pub type AttentionPrediction = Prediction<Rc<Attended>>;

impl Oracle {
    /// What each call of a case of attention does, one after the other. `right` is what is right, as far as that is
    /// known: nothing is computed again that is not otherwise. With `made`, what calls did, it ends with the call that
    /// did something else.
    pub fn predict_attention<'a>(
        &'a self,
        case: &'a Case,
        right: &'a [AttentionPrediction],
        made: Option<&'a [CallResult]>,
    ) -> impl Iterator<Item = AttentionPrediction> + 'a {
        // Without a cache there is a state of nothing, which every call keeps.
        let cache = case.cache.clone().unwrap_or_else(|| empty(case.t1));
        let mut state = Some(Rc::new(State { cache, scale: case.scale.clone() }));
        let prediction = move |(i, step)| {
            let made = made.and_then(|made| made.get(i));
            self.predict_step(case, step, &mut state, right.get(i), made)
        };
        case.steps.iter().enumerate().map_while(prediction)
    }

    /// What a call does; `None` if it made something else.
    fn predict_step(
        &self,
        case: &Case,
        step: &Step,
        known: &mut Option<Rc<State>>,
        right: Option<&AttentionPrediction>,
        made: Option<&CallResult>,
    ) -> Option<AttentionPrediction> {
        let stores_right = self.behavior == Behavior { outside: self.behavior.outside, ..Behavior::default() };
        let output = right.and_then(|right| match &right.outcome {
            PredictedOutcome::Done(output) => Some(output),
            _ => None,
        });
        let given = match (right.filter(|_| stores_right && known.is_some()), output) {
            (Some(right), None) => return Some(right.clone()),
            (Some(right), Some(output)) => {
                known.clone_from(&right.state);
                Rc::clone(&output.given)
            }
            (None, _) => match self.load(case, step, known) {
                PredictedOutcome::Done(loaded) => match output.filter(|output| output.given.loaded == loaded) {
                    Some(output) => Rc::clone(&output.given),
                    None => Rc::new(Given::new(step.input("query"), loaded, step.inputs.get("attn_mask"))),
                },
                PredictedOutcome::Refused(kind) => {
                    return Some(Prediction { outcome: PredictedOutcome::Refused(kind), state: known.clone() });
                }
                PredictedOutcome::Fails => return Some(Prediction { outcome: PredictedOutcome::Fails, state: None }),
                PredictedOutcome::Unknown => {
                    return Some(Prediction { outcome: PredictedOutcome::Unknown, state: None });
                }
            },
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
        let attend = Attend {
            attention: &self.attention,
            outside: self.behavior.outside,
            ragged: &Ragged::new(case.t1, &case.attributes.attention, step),
            given: given.read(self.attention.inputs),
            right: output.map(Rc::as_ref),
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
    /// `known`.
    fn load(&self, case: &Case, step: &Step, known: &mut Option<Rc<State>>) -> PredictedOutcome {
        let Some(state) = known else { return PredictedOutcome::Unknown };
        let attributes = &case.attributes.attention;
        // The cache is stored to only where the attention is legal, too.
        if let Err(broken) = legal(case.operator, attributes, case.t1, step) {
            return PredictedOutcome::Refused(broken[0]);
        }
        match case.operator {
            Operator::MultiHeadAttention => {
                let input = |output| step.input(["key", "value"][self.behavior.outputs.source(output)]).clone();
                PredictedOutcome::Done(vec![input(0), input(1)])
            }
            Operator::MultiHeadCacheAttention => {
                let t3 = state.scale.as_ref().map(Tensor::element);
                let types = Types { t1: case.t1, t2: state.cache.element(), t3 };
                let (attributes, inputs) = (&case.attributes.cache, stored_inputs(step));
                self.predict_call::<Attributes, _>(types, attributes, &inputs, known).outcome
            }
        }
    }
}

/// The inputs of `KeyValueCache` among those of a call over a cache.
fn stored_inputs(step: &Step) -> StepInputs {
    let input = |name: &str| step.input(name).clone();
    StepInputs {
        current_key: input("current_key"),
        current_value: input("current_value"),
        seqstarts: input("seqstarts"),
        kvstarts: input("kvstarts"),
        cachestarts: input("cachestarts"),
        start_pos: input("start_pos"),
        max_seqlen: input("max_seqlen"),
        max_kvlen: input("max_kvlen"),
    }
}

/// The oracle as an implementation refuses a call that fails, and those behind it.
impl Implementation<Case> for Oracle {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let mut state = (case.cache.clone(), case.scale.clone());
        let predictions = self.predict_attention(case, &[], None);
        Ok(predictions.map(|prediction| prediction.result(&mut state, |output| vec![output.tensor()])).collect())
    }
}
