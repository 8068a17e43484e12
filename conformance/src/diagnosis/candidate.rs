//! A mistake, and whether it gives what calls gave.

use super::diagnosable::Diagnosable;
use crate::mistakes::Mistake;
use crate::oracle::{Oracle, Outside, Prediction};
use crate::result::CallResult;

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
        case.concerns(&self.mistake.rule)
            && self
                .of_each(|oracle| {
                    let mut fails = false;
                    let differs = case.predicted(oracle, right, None).zip(right).any(|(predicted, right)| {
                        fails |= predicted.fails();
                        predicted.tells() && predicted.differs(right, 1.0, case.nan())
                    });
                    (differs || fails, fails)
                })
                .all(|differs| differs)
    }

    /// How well the mistake explains what an implementation made of a case (`None`: it could not run it); `None` if it
    /// does not.
    pub(super) fn fit<C: Diagnosable>(
        &self,
        case: &C,
        right: &[Prediction<C::Outputs>],
        made: Option<&[CallResult]>,
    ) -> Option<Fit> {
        if !case.concerns(&self.mistake.rule) {
            return None;
        }
        self.of_each(|oracle| {
            let (mut fit, mut is_wrong, mut fails, mut calls) = (Fit::default(), false, false, 0);
            for (i, predicted) in case.predicted(oracle, right, made).enumerate() {
                fails |= predicted.fails();
                if made.is_some_and(|made| !made.get(i).is_some_and(|made| predicted.fits(made, case.nan()))) {
                    return (None, fails);
                }
                if predicted.differs(&right[i], 0.0, case.nan()) {
                    is_wrong = true;
                    fit.tells |= made.is_some() && predicted.tells();
                    fit.in_full += usize::from(made.is_some() && predicted.is_done());
                }
                calls = i + 1;
            }
            let fits = made.map_or(fails, |made| made.len() == calls);
            ((fits && is_wrong).then_some(fit), fails)
        })
        .flatten()
        .max()
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
