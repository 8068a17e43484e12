//! What the oracle does with a case of attention, call by call.

use std::rc::Rc;

use kvcache_schema::Attributes;

use crate::attention::{CallResult, Case, Implementation, Operator, Step};
use crate::case::{Outputs, StepInputs, Types};
use crate::oracle::attention::attend::{Attend, Attended};
use crate::oracle::attention::ragged::Ragged;
use crate::oracle::attention::rules::{AttentionCall, broken_rules};
use crate::oracle::decisions::Conversion;
use crate::oracle::execute::empty;
use crate::oracle::heads::{OutsideOfCache, State};
use crate::oracle::numbers::write;
use crate::oracle::predict::{Oracle, PredictedOutcome, PredictedState, Prediction};
use crate::tensor::Tensor;

/// What the oracle says that a call of attention does.
pub type AttentionPrediction = Prediction<Rc<Attended>>;

impl Oracle {
    /// What each call of a case of attention does. `right` are the right outputs, as far as they are known: they need
    /// not be computed again where nothing is otherwise.
    pub fn predict_attention(&self, case: &Case, right: &[Option<Rc<Attended>>]) -> Vec<AttentionPrediction> {
        // Without a cache there is a state of nothing, which every call keeps.
        let cache = case.cache.clone().unwrap_or_else(|| empty(case.t1));
        let mut state = Some(State { cache, scale: case.scale.clone() });
        let steps = case.steps.iter().enumerate();
        steps
            .map(|(i, step)| self.predict_step(case, step, &mut state, right.get(i).and_then(Option::as_ref)))
            .collect()
    }

    fn predict_step(
        &self,
        case: &Case,
        step: &Step,
        known: &mut Option<State>,
        right: Option<&Rc<Attended>>,
    ) -> AttentionPrediction {
        let Some(state) = known else { return Prediction::ended(PredictedOutcome::Unknown, None) };
        let attributes = &case.attributes.attention;
        let call = AttentionCall { operator: case.operator, attributes, t1: case.t1, step };
        if let Some(refusal) = broken_rules(&call).into_iter().next() {
            return Prediction::ended(PredictedOutcome::Refused(refusal.kind, refusal.message), Some(state));
        }
        // The cache is stored to only where the attention is legal, too.
        let stored = match case.operator {
            Operator::MultiHeadAttention => {
                let [key, value] =
                    [0, 1].map(|output| step.input(["key", "value"][self.behavior.outputs.source(output)]).clone());
                PredictedOutcome::Done(Box::new(Outputs { key, value }))
            }
            Operator::MultiHeadCacheAttention => {
                let t3 = state.scale.as_ref().map(Tensor::element);
                let types = Types { t1: case.t1, t2: state.cache.element(), t3 };
                self.predict_call::<Attributes, _>(types, &case.attributes.cache, &stored_inputs(step), known).outcome
            }
        };
        let outcome = match stored {
            PredictedOutcome::Done(outputs) => {
                let ragged = Ragged::new(case.t1, attributes, step);
                let tensors = [step.input("query"), &outputs.key, &outputs.value];
                let decisions = (&self.attention, self.behavior.outside);
                let mask = step.inputs.get("attn_mask");
                match Attend::new(decisions, &ragged, tensors, mask, right.map(Rc::as_ref)).output() {
                    Ok(output) => PredictedOutcome::Done(match right {
                        Some(right) if **right == output => Rc::clone(right),
                        _ => Rc::new(output),
                    }),
                    Err(OutsideOfCache) => {
                        *known = None;
                        PredictedOutcome::Fails
                    }
                }
            }
            PredictedOutcome::Refused(kind, message) => PredictedOutcome::Refused(kind, message),
            PredictedOutcome::Fails => PredictedOutcome::Fails,
            PredictedOutcome::Unknown => PredictedOutcome::Unknown,
        };
        Prediction::ended(outcome, known.as_ref())
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

impl Attended {
    /// It as an implementation gives it, rounded to its type.
    fn tensor(&self) -> Tensor {
        let Some(mut tensor) = Tensor::zeros(self.element, self.shape.clone()) else {
            unreachable!("it has values in memory")
        };
        for (i, &x) in self.values.iter().enumerate() {
            write(Conversion::Nearest, self.element, tensor.bytes_mut(), i, x);
        }
        tensor
    }
}

/// The oracle as an implementation refuses a call that fails, and those behind it.
impl Implementation for Oracle {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let result = |Prediction { outcome, state }: AttentionPrediction| {
            if let PredictedState::Known(known, known_scale) = state {
                (cache, scale) = (cache.as_ref().map(|_| known), known_scale);
            }
            let outcome = outcome.done(|output| output.tensor());
            CallResult { outcome, cache: cache.clone(), scale: scale.clone() }
        };
        Ok(self.predict_attention(case, &[]).into_iter().map(result).collect())
    }
}
