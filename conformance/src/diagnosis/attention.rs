//! The cases of attention: the state counts bit for bit, the output has a tolerance.

use std::rc::Rc;

use super::candidate::Diagnosable;
use super::stored::concerns;
use crate::attention::{Case, Operator};
use crate::case::StepInputs;
use crate::implementation::CallResult;
use crate::oracle::attention::{Attended, AttentionPrediction};
use crate::oracle::{Inputs, Oracle, indices};
use crate::rules::{OperatorPage, rule as rule_of};

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
