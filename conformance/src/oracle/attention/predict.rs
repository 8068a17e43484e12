//! What the oracle does with a case of attention, call by call, and the decisions of that, of which each first value is
//! the specification's.

use std::convert::Infallible;
use std::rc::Rc;

use kvcache_schema::{Attributes, ElementType};

use crate::attention::{Case, Operator, Step};
use crate::case::{NanRule, StepInputs, Types};
use crate::oracle::attention::attend::{Attend, Attended, Stop, numbers};
use crate::oracle::attention::ragged::{Ragged, legal};
use crate::oracle::call::Call;
use crate::oracle::decisions::{Behavior, ValueOf, decisions};
use crate::oracle::execute::{State, empty, execute};
use crate::oracle::predict::{Oracle, PredictedOutcome, Prediction};
use crate::run::{CallResult, Implementation, Outcome};
use crate::tensor::Tensor;

/// What the oracle says that a call of attention does.
pub type AttentionPrediction = Prediction<Rc<Attended>>;

impl Oracle {
    /// What each call of a case of attention does, one after the other. With `made`, what calls did, it ends with the
    /// call that did something else.
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
            Ok(loaded) => [0, 1].map(|i| numbers(&loaded[i])),
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
        let ragged = &Ragged::new(case.t1, &case.attributes.attention, step);
        let attend = |[key, value]: [Vec<f64>; 2]| {
            let mask = step.inputs.get("attn_mask").map(numbers).unwrap_or_default();
            let packed = [numbers(step.input("query")), key, value, mask];
            let (attention, outside, made) = (&self.attention, self.behavior.outside, made.map(|(_, output)| output));
            Attend { attention, outside, ragged, packed, has_mass: case.has_mass, made }.output()
        };
        let unrounded = known.as_ref().and_then(|state| self.load_unrounded(case, step, state));
        let unrounded = unrounded.filter(|unrounded| *unrounded != loaded).and_then(|loaded| attend(loaded).ok());
        let outcome = match (attend(loaded), unrounded) {
            (Ok(output), unrounded) => Ok(Attended { unrounded: unrounded.map(Rc::new), ..output }),
            (Err(Stop::Contradicted), Some(unrounded)) => Ok(unrounded),
            (Err(stop), _) => Err(stop),
        };
        let outcome = match outcome {
            Ok(output) => PredictedOutcome::Done(Rc::new(output)),
            Err(Stop::Contradicted) => return None,
            Err(Stop::OutsideOfCache) => {
                *known = None;
                PredictedOutcome::Fails
            }
        };
        Some(Prediction { outcome, state: known.clone() })
    }

    /// The keys and values of a quantized cache as the products of codes and scales, in float32, which has room for
    /// those with scales of float16; none of an oracle that makes them otherwise, or has others than those in the
    /// cache.
    fn load_unrounded(&self, case: &Case, step: &Step, state: &State) -> Option<[Vec<f64>; 2]> {
        let made_of = |of: &Behavior| (of.value, of.current_from_inputs, of.loads_from, of.order, of.keeps);
        let is_quantized = case.operator == Operator::MultiHeadCacheAttention && case.attributes.cache.quant_bit != 0;
        if !is_quantized || made_of(&self.behavior) != made_of(&Behavior::default()) {
            return None;
        }
        let behavior = Behavior { value: ValueOf::NotRoundedToT3, stores_nothing: true, ..self.behavior };
        let types = types(ElementType::Float32, state);
        let (attributes, inputs) = (&case.attributes.cache, &stored_inputs(step));
        let call =
            Call::<Attributes, _> { types, attributes, inputs, cache: &state.cache, scale: state.scale.as_ref() };
        let (loaded, _) = execute(&call, &behavior).ok()?;
        Some([0, 1].map(|i| numbers(&loaded[i])))
    }

    /// The keys and values that a call attends to: of one over a cache those that it loads, with the state after that
    /// in `known`. Without them, how the call ends.
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
        let types = types(case.t1, state);
        match self.predict_call::<Attributes, _>(types, &case.attributes.cache, &stored_inputs(step), known).outcome {
            PredictedOutcome::Done(loaded) => Ok(loaded),
            PredictedOutcome::Refused(kind) => Err(PredictedOutcome::Refused(kind)),
            PredictedOutcome::Fails => Err(PredictedOutcome::Fails),
            PredictedOutcome::Unknown => Err(PredictedOutcome::Unknown),
        }
    }
}

/// The inputs of `KeyValueCache` among those of a call over a cache.
fn stored_inputs(step: &Step) -> StepInputs {
    let Ok(inputs) = StepInputs::of(|name| Ok::<_, Infallible>(step.input(name).clone()));
    inputs
}

fn types(t1: ElementType, state: &State) -> Types {
    Types { t1, t2: state.cache.element(), t3: state.scale.as_ref().map(Tensor::element) }
}

/// The oracle as an implementation refuses a call that fails, and those behind it.
impl Implementation<Case> for Oracle {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let mut state = (case.cache.clone(), case.scale.clone());
        let predictions = self.predict_attention(case, None);
        let tensors = |output: Rc<Attended>| output.outputs().map(Attended::tensor).collect();
        Ok(predictions.map(|prediction| prediction.result(&mut state, tensors)).collect())
    }
}

decisions! {
    /// How the oracle attends.
    Attention {
        [
            /// The number of those decisions that have one, like "the first n".
            n: usize,
            /// Whether the value of a key with score -inf is multiplied with its weight.
            adds_hidden_values: bool,
            /// Whether heads come before tokens in the memory of the output.
            output_heads_first: bool,
        ]

        /// The rows of `query`, and of `attn_output`, that are a sequence's.
        queries: Queries { Own, LastOfDecoding }
        /// The keys that a sequence's queries are scored with.
        keys: Keys { Own, AllSequences, Padded, WholeBlocks }
        /// The key head of a query head.
        key_head: KeyHead { Grouped, Interleaved }
        /// What an inner product is divided by: the square root of head_dim.
        factor: Factor { RootOfHeadDim, One, HeadDim, AllHeads }
        /// The sequences that have the causal mask: those of is_causal with several queries, but for the first
        /// decoding_batches.
        causal_sequences: CausalSequences { Decided, None, All, OfOneQueryToo, DecodingIgnored, WithoutMask }
        /// Whether, with the causal mask, a query sees the key at a position.
        sees: Sees { UpToOwn, BeforeOwn, NextToo, AtStart, OffsetOfBounds, OffsetNotNegative }
        /// The sequences that have ALiBi's mask: all, with is_alibi.
        alibi_sequences: AlibiSequences { Flagged, None, WithCausal, NotDecoding, WithoutMask }
        /// ALiBi's slopes: those of the largest power of two, then every second one of its double.
        slopes: Slopes { Right, AnyNumber, NextPower }
        /// What ALiBi adds: the slope times the distance.
        bias: Bias { Right, Sign, NotCausal, Symmetric, AtStart }
        /// The element of `attn_mask` for a query and a key.
        mask: Mask {
            Right, Ignored, NotWithAlibi, FirstPlane, ColumnsFromZero, BlockAtCorner, StrideOfKeys, StrideOfMaxKvlen,
        }
        /// How a score is made of an inner product and masks.
        score: Score {
            Right, MaskOnlyHides, NonzeroSees, MaskBeforeScaling, AlibiBeforeScaling, Added, Capped, MasksFinite,
            MasksMinusN,
        }
        /// The weights of scores: their softmax over the keys. Streaming ones go over blocks of n keys.
        softmax: Softmax {
            Right, WithoutMaximum, BaseTwo, TimesLog2e, NotNormalized, ValuesNotRescaled, SumNotRescaled, NothingRescaled,
        }
        /// What becomes of a query that sees no key: zeros.
        without_keys: WithoutKeys { Zeros, NanOfHidden, Nan }
        /// The queries whose weights are summed to the mass of a key.
        mass: MassOf { AllQueries, MeanOfQueries, LastQuery }
    }
}
