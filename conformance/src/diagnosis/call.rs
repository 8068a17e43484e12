//! What a call is predicted to do, beside what it did and what is right.

use std::rc::Rc;

use crate::case::NanRule;
use crate::oracle::attention::Attended;
use crate::oracle::{PredictedOutcome, Prediction, State};
use crate::result::{CallResult, Outcome};
use crate::tensor::Tensor;

/// Outputs as an oracle predicts them.
pub trait Outputs {
    /// Whether a call gave them.
    fn fits(&self, made: &[Tensor], nan: NanRule) -> bool;

    /// Whether they are not `right` by more than the tolerance of what is right and, so many times, their own.
    fn differs(&self, right: &Self, own: f64, nan: NanRule) -> bool;
}

/// Outputs whose bits count.
impl Outputs for Vec<Tensor> {
    fn fits(&self, made: &[Tensor], nan: NanRule) -> bool {
        self.len() == made.len() && self.iter().zip(made).all(|(predicted, made)| nan.are_alike(predicted, made))
    }

    fn differs(&self, right: &Self, _own: f64, nan: NanRule) -> bool {
        !self.fits(right, nan)
    }
}

/// An output that has a tolerance.
impl Outputs for Rc<Attended> {
    fn fits(&self, made: &[Tensor], _nan: NanRule) -> bool {
        matches!(made, [made] if Attended::fits(self, made))
    }

    fn differs(&self, right: &Self, own: f64, _nan: NanRule) -> bool {
        !Rc::ptr_eq(self, right) && Attended::differs(self, right, own)
    }
}

impl<O: Outputs> Prediction<O> {
    /// Whether the call reaches outside of the cache.
    pub(super) fn fails(&self) -> bool {
        matches!(self.outcome, PredictedOutcome::Fails)
    }

    /// Whether something is known of how the call ends.
    pub(super) fn tells(&self) -> bool {
        !matches!(self.outcome, PredictedOutcome::Fails | PredictedOutcome::Unknown)
    }

    /// Whether it gives outputs.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.outcome, PredictedOutcome::Done(_))
    }

    /// Whether a call did what is predicted. One that fails by mistake has no kind of error.
    pub(super) fn fits(&self, made: &CallResult, nan: NanRule) -> bool {
        let outcome = match (&self.outcome, &made.outcome) {
            (PredictedOutcome::Unknown, _) => true,
            (PredictedOutcome::Done(predicted), Outcome::Done(made)) => predicted.fits(made, nan),
            (PredictedOutcome::Refused(predicted), Outcome::Refused { kind, .. }) => {
                kind.as_deref().is_none_or(|kind| kind == *predicted)
            }
            (PredictedOutcome::Fails, Outcome::Refused { kind, .. }) => kind.is_none(),
            _ => false,
        };
        outcome && self.state.as_ref().is_none_or(|state| state.is_of(made, nan))
    }

    /// Whether it is wrong where `right` is what the call should do; with `own` 1, whether nothing that fits it is right.
    pub(super) fn differs(&self, right: &Self, own: f64, nan: NanRule) -> bool {
        let outcome = match (&self.outcome, &right.outcome) {
            (PredictedOutcome::Done(wrong), PredictedOutcome::Done(right)) => wrong.differs(right, own, nan),
            (PredictedOutcome::Refused(wrong), PredictedOutcome::Refused(right)) => wrong != right,
            _ => true,
        };
        let is_same = |(state, right): (&Rc<State>, &Rc<State>)| Rc::ptr_eq(state, right) || state.is(right, nan);
        outcome || !self.state.as_ref().zip(right.state.as_ref()).is_some_and(is_same)
    }
}
