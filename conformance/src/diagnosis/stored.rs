//! The cases of both `KeyValueCache`, whose bits count, and those of attention.

use std::rc::Rc;

use super::candidate::Diagnosable;
use crate::attention::{self, Operator};
use crate::case::{Case, StepInputs};
use crate::oracle::attention::{Attended, AttentionPrediction};
use crate::oracle::{Inputs, Oracle, Prediction, SharedAttributes, indices};
use crate::rules::{OperatorPage, rule as rule_of};
use crate::run::CallResult;
use crate::tensor::Tensor;

impl<A: Sync, I: Inputs<A>> Diagnosable for Case<A, I> {
    type Outputs = Vec<Tensor>;

    fn concerns(&self, rule: &str) -> bool {
        concerns(I::shared(&self.attributes), rule)
    }

    fn predicted<'a>(
        &'a self,
        oracle: &'a Oracle,
        _made: Option<&'a [CallResult]>,
    ) -> impl Iterator<Item = Prediction> + 'a {
        oracle.predict(self)
    }

    fn lengths(&self) -> [i64; 2] {
        let inputs = self.steps.iter().map(|step| &step.inputs);
        let tokens = |inputs: &I| {
            let [outer @ .., _, _] = inputs.current()[0].shape() else { return 0 };
            i64::try_from(outer.iter().product::<usize>()).unwrap_or(i64::MAX)
        };
        let most = |lengths: &mut dyn Iterator<Item = i64>| lengths.max().unwrap_or_default();
        [most(&mut inputs.clone().map(tokens)), most(&mut inputs.map(I::kvlen))]
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

impl Diagnosable for attention::Case {
    type Outputs = Rc<Attended>;

    fn concerns(&self, rule: &str) -> bool {
        let has_mask = || self.steps.iter().any(|step| step.inputs.contains_key("attn_mask"));
        match rule.split('.').next() {
            Some("mass") => self.has_mass,
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
        made: Option<&'a [CallResult]>,
    ) -> impl Iterator<Item = AttentionPrediction> + 'a {
        oracle.predict_attention(self, made)
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
