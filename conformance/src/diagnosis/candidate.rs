//! A mistake, and what it gives in each case.

use std::cell::OnceCell;

use super::call::{Made, Predicted};
use super::diagnosable::Diagnosable;
use crate::mistakes::Mistake;
use crate::oracle::{Oracle, Outside};

/// What each call of a case is predicted to do.
pub(super) type Calls<C> = Vec<Predicted<<C as Diagnosable>::Results>>;

/// A mistake. What it gives is computed when it is first asked for.
pub(super) struct Candidate<C: Diagnosable> {
    pub(super) mistake: &'static Mistake,
    oracle: Oracle,
    /// For each case what its calls do. Where one reaches outside of the cache, what they do then in other languages.
    predictions: Vec<OnceCell<Vec<Calls<C>>>>,
}

/// How well the prediction of a mistake fits what an implementation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fit {
    /// Whether a wrong call ended as predicted. Else a mistake could only have made it fail.
    pub(super) tells: bool,
    /// How many wrong calls did what is predicted, outputs and state included.
    pub(super) in_full: usize,
}

impl<C: Diagnosable> Candidate<C> {
    pub(super) fn new(mistake: &'static Mistake, cases: usize) -> Self {
        Self { mistake, oracle: mistake.oracle(), predictions: (0..cases).map(|_| OnceCell::new()).collect() }
    }

    /// What the calls of a case do, number `i` of the cases, of which this is `right`: first where an access outside of
    /// the cache fails.
    fn predictions(&self, i: usize, case: &C, right: &Calls<C>) -> &[Calls<C>] {
        self.predictions[i].get_or_init(|| {
            let mut all = vec![case.predicted(&self.oracle, right)];
            if all[0].iter().any(Predicted::fails) {
                let outside = [Outside::Flat, Outside::FromEnd, Outside::Clamped, Outside::Skipped];
                all.extend(outside.map(|outside| case.predicted(&self.oracle.with_outside(outside), right)));
            }
            all
        })
    }

    /// Whether a case of which this is `right` fails where the mistake is made, whatever an access outside of the cache
    /// gives.
    pub(super) fn deviates(&self, i: usize, case: &C, right: &Calls<C>) -> bool {
        if !case.concerns(&self.mistake.rule) {
            return false;
        }
        let differs = |predicted: &Calls<C>| {
            predicted.iter().zip(right).any(|(predicted, right)| predicted.is_never_right::<C::Made>(right))
        };
        self.predictions(i, case, right).iter().all(differs)
    }

    /// How well the mistake explains what an implementation made of a case (`None`: it could not run it); `None` if it
    /// does not.
    pub(super) fn fit(&self, i: usize, case: &C, right: &Calls<C>, made: Option<&[Made<C::Made>]>) -> Option<Fit> {
        if !case.concerns(&self.mistake.rule) {
            return None;
        }
        self.predictions(i, case, right).iter().filter_map(|predicted| fit::<C>(predicted, right, made)).max()
    }
}

fn fit<C: Diagnosable>(predicted: &Calls<C>, right: &Calls<C>, made: Option<&[Made<C::Made>]>) -> Option<Fit> {
    let is_wrong = |(predicted, right): &(&Predicted<_>, &Predicted<_>)| predicted.is_wrong::<C::Made>(right);
    let wrong: Vec<_> = predicted.iter().zip(right).filter(is_wrong).map(|(wrong, _)| wrong).collect();
    let fits = match made {
        None => predicted.iter().any(Predicted::fails),
        Some(made) => made.len() == predicted.len() && predicted.iter().zip(made).all(|(call, made)| call.fits(made)),
    };
    (fits && !wrong.is_empty()).then(|| Fit {
        tells: made.is_some() && wrong.iter().any(|call| call.tells()),
        in_full: if made.is_some() { wrong.iter().filter(|call| call.is_done()).count() } else { 0 },
    })
}
