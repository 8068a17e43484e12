//! A mistake, or two that are made together, and what they give in each case.

use std::cell::OnceCell;

use super::diagnosable::{Diagnosable, MadeCall, Predict};
use crate::mistakes::Mistake;
use crate::oracle::{Oracle, Outside};

/// Mistakes that are made together. What they give is computed when it is first asked for.
pub(super) struct Candidate<C: Diagnosable> {
    /// The mistakes, and the rules that they break.
    pub(super) mistakes: Vec<(&'static Mistake, &'static str)>,
    oracle: Oracle,
    /// For each case what its calls do. Where one reaches outside of the cache, what they do then in other languages.
    predictions: Vec<OnceCell<Vec<Vec<C::Predicted>>>>,
}

/// How well the prediction of a mistake fits what an implementation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fit {
    /// Whether a wrong call ended as predicted. Else a mistake could only have made it fail.
    pub(super) tells: bool,
    /// How many wrong calls did what is predicted, outputs and state included.
    pub(super) in_full: usize,
    /// Whether the first thing that is wrong is that a legal call was refused: others may follow from that.
    pub(super) refuses: bool,
    /// Whether all that is wrong is that illegal calls were made, or refused too late.
    pub(super) accepts: bool,
}

impl<C: Diagnosable> Candidate<C> {
    pub(super) fn new(mistakes: Vec<(&'static Mistake, &'static str)>, cases: usize) -> Self {
        let oracle = Mistake::oracle_of(&mistakes.iter().map(|(mistake, _)| *mistake).collect::<Vec<_>>());
        Self { mistakes, oracle, predictions: (0..cases).map(|_| OnceCell::new()).collect() }
    }

    /// What the calls of a case do, number `i` of the cases, of which this is `right`: first where an access outside of
    /// the cache fails.
    fn predictions(&self, i: usize, case: &C, right: &[C::Predicted]) -> &[Vec<C::Predicted>] {
        self.predictions[i].get_or_init(|| {
            let mut all = vec![case.predicted(&self.oracle, Some(right))];
            if all[0].iter().any(C::Predicted::fails) {
                let outside = [Outside::Flat, Outside::FromEnd, Outside::Wrapped, Outside::Clamped, Outside::Skipped];
                let predicted = |outside| case.predicted(&self.oracle.with_outside(outside), Some(right));
                all.extend(outside.map(predicted));
            }
            all
        })
    }

    /// Whether a case of which this is `right` fails where the mistakes are made, whatever an access outside of the cache
    /// gives.
    pub(super) fn deviates(&self, i: usize, case: &C, right: &[C::Predicted]) -> bool {
        self.predictions(i, case, right)
            .iter()
            .all(|predicted| predicted.iter().zip(right).any(|(predicted, right)| predicted.is_never_right(right)))
    }

    /// How well the mistakes explain what an implementation made of a case (`None`: it could not run it); `None` if
    /// they do not.
    pub(super) fn fit(&self, i: usize, case: &C, right: &[C::Predicted], made: Option<&[C::Made]>) -> Option<Fit> {
        let predictions = self.predictions(i, case, right);
        predictions.iter().filter_map(|predicted| fit(predicted, right, made)).max()
    }
}

fn fit<M: MadeCall, P: Predict<M>>(predicted: &[P], right: &[P], made: Option<&[M]>) -> Option<Fit> {
    let pairs = || predicted.iter().zip(right);
    let wrong = || pairs().filter(|(predicted, right)| predicted.is_wrong(right)).map(|(wrong, _)| wrong);
    wrong().next()?;
    let Some(made) = made else {
        return predicted.iter().any(P::fails).then_some(Fit {
            tells: false,
            in_full: 0,
            refuses: false,
            accepts: false,
        });
    };
    if made.len() != predicted.len() || predicted.iter().zip(made).any(|(predicted, made)| !predicted.fits(made)) {
        return None;
    }
    let mut refused_late = predicted.iter().zip(made).filter(|(predicted, _)| predicted.is_refused_late()).peekable();
    if refused_late.peek().is_some() && refused_late.all(|(_, made)| made.is_kept()) {
        return None;
    }
    Some(Fit {
        tells: wrong().any(P::tells),
        in_full: wrong().filter(|predicted| predicted.is_full()).count(),
        refuses: pairs()
            .zip(made)
            .find(|((predicted, right), made)| predicted.is_wrong(right) && !right.fits(made))
            .is_some_and(|((wrong, right), _)| wrong.refuses() || right.is_legal() && !wrong.is_legal()),
        accepts: pairs().all(|(predicted, right)| !predicted.is_wrong(right) || !right.is_legal()),
    })
}
