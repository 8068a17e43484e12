//! The cases of attention: the state counts bit for bit, the output has a tolerance.

use std::rc::Rc;

use super::diagnosable::Diagnosable;
use super::near::{Near, loading};
use super::stored::concerns;
use crate::attention::{Case, Operator, Step};
use crate::case::StepInputs;
use crate::oracle::attention::{Attended, AttentionPrediction};
use crate::oracle::{Inputs, Oracle, PredictedOutcome, indices};
use crate::result::{CallResult, Outcome};
use crate::rules::{OperatorPage, rule as rule_of};
use crate::tensor::Tensor;

impl Diagnosable for Case {
    type Outputs = Rc<Attended>;

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

    fn predicted<'a>(
        &'a self,
        oracle: &'a Oracle,
        right: &'a [AttentionPrediction],
        made: Option<&'a [CallResult]>,
    ) -> impl Iterator<Item = AttentionPrediction> + 'a {
        oracle.predict_attention(self, right, made)
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
                    near.compare_state(&*right.state?, (cache.as_ref()?, scale.as_ref()), true)?;
                    let loaded = self.only_call(&loading(), step, (cache, scale))?;
                    let PredictedOutcome::Done(attended) = loaded.outcome else { return None };
                    attended.fits(output.first()?).then_some(())?;
                }
                (PredictedOutcome::Refused(..), Outcome::Refused { .. }) if before == (cache, scale) => {}
                _ => return None,
            }
            before = (cache, scale);
        }
        Some(near).filter(|near| *near != Near::default())
    }

    fn lengths(&self) -> [i64; 2] {
        let starts =
            |name: &'static str| self.steps.iter().filter_map(move |step| Some(indices(step.inputs.get(name)?)));
        let longest = |starts: Vec<i64>| starts.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max();
        let tokens = starts("seqstarts").filter_map(|starts| starts.last().copied()).max().unwrap_or_default();
        let kvlen = starts("kvstarts").filter_map(longest).max().unwrap_or_default();
        [tokens, kvlen]
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
        oracle.predict_attention(&one, &[], None).next()
    }
}
