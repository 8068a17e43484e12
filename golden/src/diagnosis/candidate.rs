//! A mistake, or two that are made together, and what they give in each case.

use std::cell::OnceCell;

use super::fingerprint::{Made, Predicted};
use crate::case::Case;
use crate::mistakes::Mistake;
use crate::oracle::{Inputs, Oracle, Outside};

/// Mistakes that are made together. What they give is computed when it is first asked for.
#[derive(Debug)]
pub(super) struct Candidate {
    /// The mistakes, and the rules that they break.
    pub(super) mistakes: Vec<(&'static Mistake, &'static str)>,
    oracle: Oracle,
    /// For each case what its calls do. Where one reaches outside of the cache, what they do then in other languages.
    predictions: Vec<OnceCell<Vec<Vec<Predicted>>>>,
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

impl Candidate {
    pub(super) fn new(mistakes: Vec<(&'static Mistake, &'static str)>, cases: usize) -> Self {
        let oracle = Mistake::oracle_of(&mistakes.iter().map(|(mistake, _)| *mistake).collect::<Vec<_>>());
        Self { mistakes, oracle, predictions: vec![OnceCell::new(); cases] }
    }

    /// What the calls of a case do, number `i` of the cases: first where an access outside of the cache fails.
    fn predictions<A, I: Inputs<A>>(&self, i: usize, case: &Case<A, I>) -> &[Vec<Predicted>] {
        self.predictions[i].get_or_init(|| {
            let mut all = vec![Predicted::calls(&self.oracle, case)];
            if all[0].iter().any(Predicted::fails) {
                let outside = [Outside::Flat, Outside::FromEnd, Outside::Skipped];
                all.extend(outside.map(|outside| Predicted::calls(&self.oracle.with_outside(outside), case)));
            }
            all
        })
    }

    /// Whether the mistakes change anything in a case of which this is `right`.
    pub(super) fn deviates<A, I: Inputs<A>>(&self, i: usize, case: &Case<A, I>, right: &[Predicted]) -> bool {
        self.predictions(i, case)[0] != right
    }

    /// How well the mistakes explain what an implementation made of a case (`None`: it could not run it); `None` if
    /// they do not.
    pub(super) fn fit<A, I: Inputs<A>>(
        &self,
        i: usize,
        case: &Case<A, I>,
        right: &[Predicted],
        made: Option<&[Made]>,
    ) -> Option<Fit> {
        let predictions = self.predictions(i, case);
        predictions.iter().filter_map(|predicted| fit(predicted, right, made)).max()
    }
}

fn fit(predicted: &[Predicted], right: &[Predicted], made: Option<&[Made]>) -> Option<Fit> {
    if predicted == right {
        return None;
    }
    let Some(made) = made else {
        return predicted.iter().any(Predicted::fails).then_some(Fit {
            tells: false,
            in_full: 0,
            refuses: false,
            accepts: false,
        });
    };
    if made.len() != predicted.len() || predicted.iter().zip(made).any(|(predicted, made)| !predicted.fits(made)) {
        return None;
    }
    let wrong = || predicted.iter().zip(right).filter(|(predicted, right)| predicted != right).map(|(wrong, _)| wrong);
    Some(Fit {
        tells: wrong().any(Predicted::tells),
        in_full: wrong().filter(|predicted| predicted.is_full()).count(),
        refuses: wrong().next().is_some_and(Predicted::refuses),
        accepts: predicted.iter().zip(right).all(|(predicted, right)| predicted == right || !right.is_legal()),
    })
}
