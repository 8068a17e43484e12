//! The known mistakes on some cases, and the diagnosis of one case.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::slice;

use super::candidate::Candidate;
use super::diagnosable::Diagnosable;
use super::scope::Facts;
use crate::implementation::CallResult;
use crate::mistakes::{Mistake, mistakes};
use crate::oracle::Oracle;

/// What the known mistakes give in some cases. It is computed when it is first asked for, and kept for the next
/// diagnosis.
pub struct KnownMistakes<'a, C: Diagnosable> {
    pub(super) cases: &'a [C],
    /// What is right.
    right: Vec<OnceCell<Vec<C::Predicted>>>,
    /// What can be said of each case.
    pub(super) facts: Vec<Facts>,
    /// Each mistake by itself, in the order of the list.
    pub(super) single: Vec<Candidate<C>>,
}

/// What an implementation did with a case; `R` is the result of a call.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a, R = CallResult> {
    /// The case, by its place among the cases.
    pub case: usize,
    /// The result of each call; `None` if the implementation could not run the case, as after a crash.
    pub results: Option<&'a [R]>,
    /// Whether the results are the expected ones.
    pub passed: bool,
}

/// The known mistakes that explain a wrong result, each by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// The most specific one.
    pub mistake: &'static str,
    /// What is probably wrong, and where to look for it.
    pub about: &'static str,
    /// The rule of the operator's page that it breaks.
    pub rule: &'static str,
    /// The others, the most specific first.
    pub or: Vec<&'static str>,
}

/// The known mistakes that the results of a failed case come from; `None` if they come from none.
///
/// The most specific one is that which predicts the most wrong calls in full (an illegal call that was made has no
/// defined result), and of those the one that comes first in [`mistakes`](crate::mistakes::mistakes()), where one that
/// changes less comes before one that changes more.
pub fn diagnose<C: Diagnosable>(case: &C, results: &[C::Result]) -> Option<Diagnosis> {
    KnownMistakes::new(slice::from_ref(case)).diagnose(0, results)
}

impl<'a, C: Diagnosable> KnownMistakes<'a, C> {
    /// The known mistakes on these cases.
    pub fn new(cases: &'a [C]) -> Self {
        let of_suite = mistakes().iter().filter_map(|mistake| Some((mistake, C::rule_of(mistake)?)));
        let single = of_suite.map(|mistake| Candidate::new(vec![mistake], cases.len())).collect();
        let facts = cases.iter().map(C::facts).collect();
        Self { cases, right: cases.iter().map(|_| OnceCell::new()).collect(), facts, single }
    }

    /// The known mistakes that the results of a failed case come from, as [`diagnose`] has it; the case is given by its
    /// place among the cases.
    pub fn diagnose(&self, case: usize, results: &[C::Result]) -> Option<Diagnosis> {
        let made = self.cases[case].made(results);
        let fit = |candidate: &Candidate<C>| {
            candidate.fit(case, &self.cases[case], self.right(case), Some(&made)).filter(|fit| fit.tells)
        };
        let mut fits: Vec<_> =
            self.single.iter().filter_map(|candidate| Some((fit(candidate)?, candidate.mistakes[0]))).collect();
        // Stable: what fits equally well stays in the order of the list.
        fits.sort_by_key(|(fit, _)| Reverse(fit.in_full));
        let mut fits = fits.into_iter().map(|(_, mistake)| mistake);
        let (&Mistake { name, about, .. }, rule) = fits.next()?;
        Some(Diagnosis { mistake: name, about, rule, or: fits.map(|(mistake, _)| mistake.name).collect() })
    }

    /// What the calls of a case should do.
    pub(super) fn right(&self, case: usize) -> &[C::Predicted] {
        self.right[case].get_or_init(|| self.cases[case].predicted(&Oracle::default(), None))
    }
}
