//! What the oracle does with a case of attention, call by call.

use std::rc::Rc;

use kvcache_schema::{AttentionAttributes, Attributes, ElementType};

use crate::attention::{CallResult, Case, Implementation, Operator, Step};
use crate::case::{Outputs, StepInputs, Types};
use crate::implementation::Outcome;
use crate::oracle::arithmetic::Arithmetic;
use crate::oracle::attention::attend::{Attended, KnownRow, Packed, attend};
use crate::oracle::attention::decisions::Attention;
use crate::oracle::attention::ragged::Ragged;
use crate::oracle::attention::rules::{AttentionCall, broken_rules};
use crate::oracle::behavior::{Behavior, Verdict};
use crate::oracle::execute::{OutsideOfCache, State, empty};
use crate::oracle::inputs::Inputs;
use crate::oracle::predict::{Knowledge, Oracle, PredictedOutcome, PredictedState, Prediction};
use crate::oracle::refusal::Refusal;
use crate::tensor::Tensor;

/// What the oracle says that a call of attention does.
pub type AttentionPrediction = Prediction<Rc<Attended>>;

/// What a call reads and computes where no mistake is made, so that the same need not be computed again.
#[derive(Debug)]
pub struct KnownCall {
    ragged: Ragged,
    read: Outputs,
    output: Rc<Attended>,
    rows: Vec<KnownRow>,
}

/// What is known between the calls of a case.
struct Progress {
    state: State,
    knowledge: Knowledge,
}

impl Oracle {
    /// What each call of a case of attention does.
    pub fn predict_attention(&self, case: &Case) -> Vec<AttentionPrediction> {
        self.predict_attention_from(case, &[]).into_iter().map(|(prediction, _)| prediction).collect()
    }

    /// The same, and what was computed; `known` is what that is where no mistake is made, as far as it is known.
    pub fn predict_attention_from(
        &self,
        case: &Case,
        known: &[Option<&KnownCall>],
    ) -> Vec<(AttentionPrediction, Option<KnownCall>)> {
        let attributes = self.attributes(&case.attributes.attention);
        let cache = <StepInputs as Inputs<Attributes>>::read_attributes(&case.attributes.cache, &self.behavior);
        // Without a cache there is a state of nothing, which every call keeps.
        let state = State { cache: case.cache.clone().unwrap_or_else(|| empty(case.t1)), scale: case.scale.clone() };
        let mut progress = Progress { state, knowledge: Knowledge::Values };
        let predict = |(i, step)| {
            let mut call = None;
            let known = known.get(i).copied().flatten();
            let prediction = self.predict_step(case, &attributes, &cache, step, &mut progress, (known, &mut call));
            (prediction, call)
        };
        case.steps.iter().enumerate().map(predict).collect()
    }

    fn attributes(&self, attributes: &AttentionAttributes) -> AttentionAttributes {
        let mut read = attributes.clone();
        for spec in &AttentionAttributes::SPEC {
            let known = read.set(spec.name, (self.behavior.attribute)(spec.value(attributes)));
            debug_assert!(known, "an attribute's own name");
        }
        read
    }

    fn predict_step(
        &self,
        case: &Case,
        attributes: &AttentionAttributes,
        cache: &Attributes,
        step: &Step,
        progress: &mut Progress,
        (known, computed): (Option<&KnownCall>, &mut Option<KnownCall>),
    ) -> AttentionPrediction {
        let Progress { state, knowledge } = progress;
        if *knowledge == Knowledge::Nothing {
            return Prediction { outcome: PredictedOutcome::Unknown, state: PredictedState::Unknown };
        }
        let kept = match knowledge {
            Knowledge::Values => PredictedState::Known(state.cache.clone(), state.scale.clone()),
            _ => PredictedState::Kept,
        };
        let call = AttentionCall { operator: case.operator, attributes, t1: case.t1, step };
        if let Some(refusal) = broken_rules(&call, &self.behavior).into_iter().next() {
            return self.refused(refusal, kept, progress);
        }
        // The cache is stored to only where the attention is legal, too.
        let ragged = Ragged::new(case.t1, attributes, step, &self.behavior);
        let stored = match case.operator {
            Operator::MultiHeadAttention => {
                let [key, value] = self.behavior.outputs.map(|output| step.input(["key", "value"][output]).clone());
                Prediction { outcome: PredictedOutcome::Done(Box::new(Outputs { key, value })), state: kept.clone() }
            }
            Operator::MultiHeadCacheAttention => {
                let types =
                    Types { t1: case.t1, t2: state.cache.element(), t3: state.scale.as_ref().map(Tensor::element) };
                self.predict_call(types, cache, &stored_inputs(step), state, knowledge)
            }
        };
        let legal = matches!(stored.outcome, PredictedOutcome::Done(_) | PredictedOutcome::DoneSomehow);
        if legal && (self.behavior.attention.refuses)(&ragged) {
            return Prediction { outcome: PredictedOutcome::RefusedWrongly, state: kept };
        }
        let outcome = match stored.outcome {
            PredictedOutcome::Done(outputs) => match self.attended(step, ragged, *outputs, known) {
                Ok((output, call)) => {
                    *computed = call;
                    PredictedOutcome::Done(output)
                }
                Err(OutsideOfCache) => {
                    *knowledge = Knowledge::Nothing;
                    let state = PredictedState::Unknown;
                    return Prediction { outcome: PredictedOutcome::Fails, state };
                }
            },
            PredictedOutcome::DoneSomehow => PredictedOutcome::DoneSomehow,
            PredictedOutcome::Refused(kind, message) => PredictedOutcome::Refused(kind, message),
            PredictedOutcome::RefusedWrongly => PredictedOutcome::RefusedWrongly,
            PredictedOutcome::Fails => PredictedOutcome::Fails,
            PredictedOutcome::Unknown => PredictedOutcome::Unknown,
        };
        Prediction { outcome, state: stored.state }
    }

    /// The output of a legal call that reads this from the cache, and what is computed, unless all of it is known.
    fn attended(
        &self,
        step: &Step,
        ragged: Ragged,
        read: Outputs,
        known: Option<&KnownCall>,
    ) -> Result<(Rc<Attended>, Option<KnownCall>), OutsideOfCache> {
        let Behavior { attention, outside, .. } = &self.behavior;
        let known = known.filter(|known| known.read == read && attention.reads.is_none());
        if let Some(known) = known.filter(|known| known.ragged == ragged && *attention == Attention::default()) {
            return Ok((Rc::clone(&known.output), None));
        }
        let tensors = [step.input("query"), &read.key, &read.value];
        let packed = Packed::new(tensors, step.inputs.get("attn_mask"), attention.reads);
        let (output, rows) = attend(&ragged, &packed, attention, *outside, known.map(|known| &known.rows[..]))?;
        let output = Rc::new(output);
        let call = KnownCall { ragged, read, output: Rc::clone(&output), rows };
        Ok((output, Some(call)))
    }

    /// What is done with a call that breaks a rule of attention.
    fn refused(&self, refusal: Refusal, kept: PredictedState, progress: &mut Progress) -> AttentionPrediction {
        let verdict = (self.behavior.verdict)(&refusal);
        let outcome = PredictedOutcome::Refused(refusal.kind, refusal.message);
        let (outcome, state) = match verdict {
            Verdict::RefusedLate if !progress.state.cache.bytes().is_empty() => (outcome, PredictedState::Changed),
            Verdict::Refused | Verdict::RefusedLate => return Prediction { outcome, state: kept },
            Verdict::Accepted => (PredictedOutcome::DoneSomehow, PredictedState::Unknown),
        };
        progress.knowledge = Knowledge::Shapes;
        Prediction { outcome, state }
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
    pub fn tensor(&self) -> Tensor {
        let arithmetic = Arithmetic::default();
        let Some(mut tensor) = Tensor::zeros(self.element, self.shape.clone()) else {
            unreachable!("it has values in memory")
        };
        for (i, &x) in self.values.iter().enumerate() {
            arithmetic.write(self.element, tensor.bytes_mut(), i, x);
        }
        tensor
    }
}

/// Where a prediction leaves something open, the oracle as an implementation does something that fits it: an output
/// without elements, a state of which one bit is turned, a refusal.
impl Implementation for Oracle {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let result = |prediction: AttentionPrediction| {
            match prediction.state {
                PredictedState::Known(known, known_scale) => {
                    (cache, scale) = (cache.as_ref().map(|_| known), known_scale);
                }
                PredictedState::Changed => {
                    cache.iter_mut().flat_map(Tensor::bytes_mut).take(1).for_each(|byte| *byte ^= 1);
                }
                PredictedState::Kept | PredictedState::Unknown => {}
            }
            let outcome = match prediction.outcome {
                PredictedOutcome::Done(output) => Outcome::Done(output.tensor()),
                PredictedOutcome::DoneSomehow | PredictedOutcome::Unknown => Outcome::Done(empty(ElementType::Float32)),
                PredictedOutcome::Refused(kind, message) => Outcome::Refused { kind: Some(kind.to_owned()), message },
                PredictedOutcome::RefusedWrongly => Outcome::refused("refused although it is legal"),
                PredictedOutcome::Fails => Outcome::refused("an element outside of a tensor"),
            };
            CallResult { outcome, cache: cache.clone(), scale: scale.clone() }
        };
        Ok(self.predict_attention(case).into_iter().map(result).collect())
    }
}
