//! A mistake, and whether it gives what calls gave.

use std::rc::Rc;

use crate::case::NanRule;
use crate::mistakes::Mistake;
use crate::oracle::attention::Attended;
use crate::oracle::{Oracle, Outside, PredictedOutcome, Prediction, State};
use crate::run::{CallResult, Outcome};
use crate::suite::Suite;
use crate::tensor::Tensor;

/// A case that known mistakes can be tried on.
pub trait Diagnosable: Suite + Sized {
    /// The predicted outputs of a call.
    type Outputs: Outputs;

    /// Whether breaking a rule alone can change what its calls do, as one of quantization cannot where nothing is
    /// quantized.
    fn concerns(&self, rule: &str) -> bool;

    /// What each call does on an oracle, one after the other. With `made`, what calls did, it may end with a call that did
    /// something else.
    fn predicted<'a>(
        &'a self,
        oracle: &'a Oracle,
        made: Option<&'a [CallResult]>,
    ) -> impl Iterator<Item = Prediction<Self::Outputs>> + 'a;

    /// The most current tokens of a call, and of all tokens of a sequence.
    fn lengths(&self) -> [i64; 2];
}

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
        Attended::fits(self, made)
    }

    fn differs(&self, right: &Self, own: f64, _nan: NanRule) -> bool {
        Attended::differs(self, right, own)
    }
}

impl<O: Outputs> Prediction<O> {
    /// Whether the call reaches outside of the cache.
    fn fails(&self) -> bool {
        matches!(self.outcome, PredictedOutcome::Fails)
    }

    /// Whether something is known of how the call ends.
    fn tells(&self) -> bool {
        !matches!(self.outcome, PredictedOutcome::Fails | PredictedOutcome::Unknown)
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
    fn differs(&self, right: &Self, own: f64, nan: NanRule) -> bool {
        let outcome = match (&self.outcome, &right.outcome) {
            (PredictedOutcome::Done(wrong), PredictedOutcome::Done(right)) => wrong.differs(right, own, nan),
            (PredictedOutcome::Refused(wrong), PredictedOutcome::Refused(right)) => wrong != right,
            _ => true,
        };
        let is_same = |(state, right): (&Rc<State>, &Rc<State>)| state.is(right, nan);
        outcome || !self.state.as_ref().zip(right.state.as_ref()).is_some_and(is_same)
    }
}

/// A mistake, as oracles that make it: first one that fails where an access is outside of the cache, then those that do
/// what such an access does in other languages.
pub(super) struct Candidate {
    pub(super) mistake: &'static Mistake,
    oracles: [Oracle; 4],
}

/// How well the prediction of a mistake fits what an implementation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Fit {
    /// Whether a wrong call ended as predicted. Else a mistake could only have made it fail.
    pub(super) tells: bool,
    /// How many wrong calls did what is predicted, outputs and state included.
    pub(super) in_full: usize,
}

impl Candidate {
    pub(super) fn new(mistake: &'static Mistake) -> Self {
        let outside = [Outside::Fails, Outside::Flat, Outside::FromEnd, Outside::Skipped];
        Self { mistake, oracles: outside.map(|outside| mistake.oracle().with_outside(outside)) }
    }

    /// Whether a case of which this is `right` fails where the mistake is made, whatever an access outside of the cache
    /// gives.
    pub(super) fn deviates<C: Diagnosable>(&self, case: &C, right: &[Prediction<C::Outputs>]) -> bool {
        let deviates = |oracle: &Oracle| {
            let mut fails = false;
            let differs = case.predicted(oracle, None).zip(right).any(|(predicted, right)| {
                fails |= predicted.fails();
                predicted.tells() && predicted.differs(right, 1.0, case.nan())
            });
            (differs || fails, fails)
        };
        case.concerns(&self.mistake.rule) && self.of_each(deviates).all(|differs| differs)
    }

    /// How well the mistake explains what an implementation made of a case (`None`: it could not run it); `None` if it
    /// does not.
    pub(super) fn fit<C: Diagnosable>(
        &self,
        case: &C,
        right: &[Prediction<C::Outputs>],
        made: Option<&[CallResult]>,
    ) -> Option<Fit> {
        let fit = |oracle: &Oracle| {
            let (mut fit, mut is_wrong, mut fails, mut calls) = (Fit::default(), false, false, 0);
            for (i, predicted) in case.predicted(oracle, made).enumerate() {
                fails |= predicted.fails();
                if made.is_some_and(|made| !made.get(i).is_some_and(|made| predicted.fits(made, case.nan()))) {
                    return (None, fails);
                }
                if predicted.differs(&right[i], 0.0, case.nan()) {
                    is_wrong = true;
                    fit.tells |= made.is_some() && predicted.tells();
                    let is_done = matches!(predicted.outcome, PredictedOutcome::Done(_));
                    fit.in_full += usize::from(made.is_some() && is_done);
                }
                calls = i + 1;
            }
            let fits = made.map_or(fails, |made| made.len() == calls);
            ((fits && is_wrong).then_some(fit), fails)
        };
        case.concerns(&self.mistake.rule).then(|| self.of_each(fit).flatten().max()).flatten()
    }

    /// What `try_one` gives for each oracle, and whether a call failed there: if none fails, the others do the same.
    fn of_each<T>(&self, try_one: impl Fn(&Oracle) -> (T, bool)) -> impl Iterator<Item = T> {
        let mut is_last = false;
        self.oracles.iter().map_while(move |oracle| {
            let (result, fails) = (!is_last).then(|| try_one(oracle))?;
            is_last |= !fails;
            Some(result)
        })
    }
}
