//! What a suite tells of its cases, so that their failures can be diagnosed.

use super::near::Near;
use super::refusals::Refusal;
use super::scope::Facts;
use crate::mistakes::Mistake;
use crate::oracle::Oracle;
use crate::suite::Suite;

/// A case that known mistakes can be tried on.
pub trait Diagnosable: Suite + Sized {
    /// What a call is predicted to do.
    type Predicted: Predict<Self::Made>;
    /// What a call did, as predictions are compared with it.
    type Made: MadeCall;

    /// The rule of the suite's operators that a mistake breaks; `None` if it cannot be made there.
    fn rule_of(mistake: &Mistake) -> Option<&'static str>;

    /// What each call does on an oracle; `right` is what it should do, if that is known already.
    fn predicted(&self, oracle: &Oracle, right: Option<&[Self::Predicted]>) -> Vec<Self::Predicted>;

    /// What each call did.
    fn made(&self, results: &[Self::Result]) -> Vec<Self::Made>;

    /// What differs in the results of its calls, if no more does than other roundings explain.
    fn near(&self, results: &[Self::Result]) -> Option<Near>;

    /// What can be said of it.
    fn facts(&self) -> Facts;

    /// How much there is to compute: the less, the sooner a case is tried.
    fn size(&self) -> usize;
}

/// What a call did.
pub trait MadeCall {
    /// What was said when it was refused; `None` if it was not.
    fn refusal(&self) -> Option<&Refusal>;

    /// Whether it was refused.
    fn is_refused(&self) -> bool {
        self.refusal().is_some()
    }

    /// Whether it left cache and scale as they were.
    fn is_kept(&self) -> bool;
}

/// What a call is predicted to do.
pub trait Predict<M>: Sized {
    /// Whether the call reaches outside of the cache.
    fn fails(&self) -> bool;

    /// Whether the call is legal: what is right of it says.
    fn is_legal(&self) -> bool;

    /// Whether a legal call is refused.
    fn refuses(&self) -> bool;

    /// Whether something is known of how the call ends.
    fn tells(&self) -> bool;

    /// Whether outputs and state are predicted, or that the call is refused after it has written something.
    fn is_full(&self) -> bool;

    /// Whether a call did what is predicted.
    fn fits(&self, made: &M) -> bool;

    /// Whether it is wrong where `right` is what the call should do.
    fn is_wrong(&self, right: &Self) -> bool;

    /// Whether nothing that fits it is right. What is compared with a tolerance can be both, and who writes before a
    /// rule is checked may check another one in time.
    fn is_never_right(&self, right: &Self) -> bool;

    /// Whether the call is refused, perhaps after it has written something.
    fn is_refused_late(&self) -> bool;
}
