//! The cases of attention: the state counts bit for bit, the output has a tolerance.

use std::rc::Rc;

use half::f16;
use kvcache_schema::ElementType;

use super::call::{Ended, Made, Predicted, Results, print};
use super::diagnosable::Diagnosable;
use super::near::{Near, loading};
use super::scope::Facts;
use super::stored::concerns;
use crate::attention::{CallResult, Case, Operator, Step};
use crate::case::{NanRule, StepInputs};
use crate::difference::Value;
use crate::implementation::Outcome;
use crate::oracle::attention::{Attended, AttentionPrediction};
use crate::oracle::{Inputs, Oracle, PredictedOutcome, PredictedState, indices};
use crate::rules::{OperatorPage, rule as rule_of};
use crate::suite::Suite;
use crate::tensor::Tensor;

/// A tolerance beyond so many times the largest value says nothing.
const MOST_TOLERANCE: f64 = 1024.0;

/// The output of a call.
#[derive(Debug)]
pub struct MadeOutput {
    element: ElementType,
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl From<&Tensor> for MadeOutput {
    fn from(output: &Tensor) -> Self {
        let values = (0..Value::count(output)).filter_map(|i| Value::at(output, i).float());
        Self { element: output.element(), shape: output.shape().to_vec(), values: values.collect() }
    }
}

/// What is right is shared by the predictions that are the same.
impl Results<MadeOutput> for Rc<Attended> {
    fn fits(&self, made: &MadeOutput) -> bool {
        (self.element, &self.shape, self.values.len()) == (made.element, &made.shape, made.values.len())
            && says_something(self)
            && is_within(self, &made.values)
    }

    fn differs(&self, right: &Self, own: f64) -> bool {
        !Rc::ptr_eq(self, right)
            && (self.element != right.element || self.shape != right.shape || !is_near(self, right, own))
    }
}

impl Diagnosable for Case {
    type Made = MadeOutput;
    type Results = Rc<Attended>;

    fn concerns(&self, rule: &str) -> bool {
        let has_mask = || self.steps.iter().any(|step| step.inputs.contains_key("attn_mask"));
        match rule.split('.').next() {
            Some("alibi") => self.attributes.attention.is_alibi != 0,
            // Some of attn_mask are of ALiBi, too.
            Some("attn-mask") => has_mask() || self.attributes.attention.is_alibi != 0,
            // Without a cache, a mistake in it shows in which of the inputs is the key.
            _ if self.operator == Operator::MultiHeadAttention => {
                rule_of(OperatorPage::KeyValueCache, rule).is_none() || rule == "outputs.packed"
            }
            _ => concerns(StepInputs::shared(&self.attributes.cache), rule),
        }
    }

    fn predicted(&self, oracle: &Oracle, right: &[Predicted<Rc<Attended>>]) -> Vec<Predicted<Rc<Attended>>> {
        let output = |call: &Predicted<_>| match &call.outcome {
            Ended::Done(output) => Some(Rc::clone(output)),
            _ => None,
        };
        let right: Vec<_> = right.iter().map(output).collect();
        let predictions = oracle.predict_attention(self, &right).into_iter();
        predictions.map(|prediction| Predicted::new(prediction, |output| output, NanRule::Exact)).collect()
    }

    fn made(&self, results: &[CallResult]) -> Vec<Made<MadeOutput>> {
        // Without a cache, predictions have one without elements.
        let none = Tensor::zeros(self.t1, vec![0, 0, 0]);
        let made = results.iter().map(|CallResult { outcome, cache, scale }| {
            let state = print([cache.as_ref().or(none.as_ref()), scale.as_ref()], NanRule::Exact);
            Made::new(outcome, |output: &Tensor| MadeOutput::from(output), state)
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
                    let MadeOutput { element, shape, values } = output.into();
                    let is_alike = (attended.element, &attended.shape) == (element, &shape);
                    (is_alike && is_within(&attended, &values)).then_some(())?;
                }
                (PredictedOutcome::Refused(..), Outcome::Refused { .. }) if before == (cache, scale) => {}
                _ => return None,
            }
            before = (cache, scale);
        }
        Some(near).filter(|near| *near != Near::default())
    }

    fn facts(&self) -> Facts {
        let starts =
            |name: &'static str| self.steps.iter().filter_map(move |step| Some(indices(step.inputs.get(name)?)));
        let longest = |starts: Vec<i64>| starts.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max();
        let tokens = starts("seqstarts").filter_map(|starts| starts.last().copied()).max().unwrap_or_default();
        let kvlen = starts("kvstarts").filter_map(longest).max().unwrap_or_default();
        Facts::new(&self.features(), &[("tokens", tokens), ("kvlen", kvlen)])
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
        oracle.predict_attention(&one, &[]).pop()
    }
}

/// Whether `wrong` is within the tolerance of what is right and, so many times, its own: as it is, and rounded as
/// implementations give it.
fn is_near(wrong: &Attended, right: &Attended, own: f64) -> bool {
    let allowed = right.tolerance.iter().zip(&wrong.tolerance).map(|(right, wrong)| right + own * wrong);
    right.values.iter().zip(&wrong.values).zip(allowed).all(|((&expected, &got), allowed)| {
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
