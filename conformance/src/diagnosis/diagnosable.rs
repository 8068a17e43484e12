//! What a suite tells of its cases, so that their failures can be diagnosed.

use super::call::Outputs;
use super::near::Near;
use crate::oracle::{Oracle, Prediction};
use crate::result::CallResult;
use crate::suite::Suite;

/// A case that known mistakes can be tried on.
pub trait Diagnosable: Suite + Sized {
    /// The predicted outputs of a call.
    type Outputs: Outputs;

    /// Whether breaking a rule alone can change what its calls do, as one of quantization cannot where nothing is
    /// quantized.
    fn concerns(&self, rule: &str) -> bool;

    /// What each call does on an oracle, one after the other; `right` is what it should do, as far as that is known. With
    /// `made`, what calls did, it may end with a call that did something else.
    fn predicted<'a>(
        &'a self,
        oracle: &'a Oracle,
        right: &'a [Prediction<Self::Outputs>],
        made: Option<&'a [CallResult]>,
    ) -> impl Iterator<Item = Prediction<Self::Outputs>> + 'a;

    /// What differs in the results of its calls, if no more does than other roundings explain.
    fn near(&self, results: &[CallResult]) -> Option<Near>;

    /// The most current tokens of a call, and of all tokens of a sequence.
    fn lengths(&self) -> [i64; 2];
}
