//! The cases of both `KeyValueCache`, whose bits count.

use super::call::{Made, Predicted, print};
use super::diagnosable::Diagnosable;
use super::near::{Near, loading};
use super::scope::Facts;
use crate::case::{Case, Outputs};
use crate::implementation::{CallResult, Outcome};
use crate::oracle::{Inputs, Oracle, PredictedOutcome, PredictedState, SharedAttributes};
use crate::suite::Suite;

impl<A, I: Inputs<A>> Diagnosable for Case<A, I>
where
    Self: Suite<Result = CallResult>,
{
    type Made = u64;
    type Results = u64;

    fn concerns(&self, rule: &str) -> bool {
        concerns(I::shared(&self.attributes), rule)
    }

    fn predicted(&self, oracle: &Oracle, _right: &[Predicted<u64>]) -> Vec<Predicted<u64>> {
        let of = |outputs: &Outputs| print([Some(&outputs.key), Some(&outputs.value)], self.nan);
        let predictions = oracle.predict(self).into_iter();
        predictions.map(|prediction| Predicted::new(prediction, |outputs| of(&outputs), self.nan)).collect()
    }

    fn made(&self, results: &[CallResult]) -> Vec<Made<u64>> {
        let of = |outputs: &Outputs| print([Some(&outputs.key), Some(&outputs.value)], self.nan);
        let made = results.iter().map(|CallResult { outcome, cache, scale }| {
            Made::new(outcome, of, print([Some(cache), scale.as_ref()], self.nan))
        });
        made.collect()
    }

    fn near(&self, results: &[CallResult]) -> Option<Near> {
        let quantizes = I::shared(&self.attributes).quant_bit != 0;
        let (mut near, mut before) = (Near::default(), (&self.cache, self.scale.as_ref()));
        for (step, CallResult { outcome, cache, scale }) in self.steps.iter().zip(results) {
            let after = (cache, scale.as_ref());
            let right = Oracle::default().predict_one(self, step, before);
            match (right.outcome, outcome) {
                (PredictedOutcome::Done(_), Outcome::Done(outputs)) => {
                    let PredictedState::Known(right_cache, right_scale) = &right.state else { return None };
                    near.compare_state((right_cache, right_scale.as_ref()), after, quantizes)?;
                    let PredictedOutcome::Done(loaded) = loading().predict_one(self, step, after).outcome else {
                        return None;
                    };
                    near.compare_outputs(&loaded, outputs, self.types)?;
                }
                (PredictedOutcome::Refused(..), Outcome::Refused { .. }) if before == after => {}
                _ => return None,
            }
            before = after;
        }
        Some(near).filter(|near| *near != Near::default() && results.len() == self.steps.len())
    }

    fn facts(&self) -> Facts {
        let inputs = self.steps.iter().map(|step| &step.inputs);
        let tokens = |inputs: &I| {
            let [outer @ .., _, _] = inputs.current()[0].shape() else { return 0 };
            i64::try_from(outer.iter().product::<usize>()).unwrap_or(i64::MAX)
        };
        let lengths = [
            ("tokens", inputs.clone().map(tokens).max().unwrap_or_default()),
            ("kvlen", inputs.map(I::kvlen).max().unwrap_or_default()),
        ];
        Facts::new(&self.features(), &lengths)
    }
}

/// Whether breaking a rule of `KeyValueCache` alone can change what calls with these attributes do.
pub(super) fn concerns(attributes: SharedAttributes, rule: &str) -> bool {
    match rule.split('.').next() {
        Some("quantizing" | "dequantizing" | "scale") => attributes.quant_bit != 0,
        Some("int4") => attributes.quant_bit == 4,
        Some("num-repeat") => attributes.num_repeat != 1,
        Some("pages") => attributes.cache_mode == Some(1),
        _ if rule == "cache-mode.0" => attributes.cache_mode == Some(0),
        _ if rule == "cache-mode.1" => attributes.cache_mode == Some(1),
        _ => true,
    }
}
