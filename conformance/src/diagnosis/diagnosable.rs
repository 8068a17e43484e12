//! What a suite tells of its cases, so that their failures can be diagnosed.

use super::call::{Made, Predicted, Results};
use super::near::Near;
use super::scope::Facts;
use crate::oracle::Oracle;
use crate::suite::Suite;

/// A case that known mistakes can be tried on.
pub trait Diagnosable: Suite + Sized {
    /// What a call gives, as predictions are compared with it.
    type Made;
    /// The predicted outputs of a call.
    type Results: Results<Self::Made>;

    /// Whether breaking a rule alone can change what its calls do, as one of quantization cannot where nothing is
    /// quantized.
    fn concerns(&self, rule: &str) -> bool;

    /// What each call does on an oracle; `right` is what it should do, if that is known already.
    fn predicted(&self, oracle: &Oracle, right: &[Predicted<Self::Results>]) -> Vec<Predicted<Self::Results>>;

    /// What each call did.
    fn made(&self, results: &[Self::Result]) -> Vec<Made<Self::Made>>;

    /// What differs in the results of its calls, if no more does than other roundings explain.
    fn near(&self, results: &[Self::Result]) -> Option<Near>;

    /// What can be said of it.
    fn facts(&self) -> Facts;
}
