//! The diagnosis of a whole run.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::candidate::{Candidate, Diagnosable, Fit};
use super::explanation::{Explanation, Group, RunDiagnosis, groups};
use super::scope::{Facts, Scope};
use crate::case::Expected;
use crate::difference::{Difference, Mismatch};
use crate::mistakes::mistakes;
use crate::oracle::{Oracle, Prediction};
use crate::run::{CallResult, Demand, Outcome};

/// For each failure that a mistake explains, so many cases may have passed that it would fail.
const MOST_CONTRADICTIONS: usize = 4;

/// The known mistakes, and what is right in some cases, which is computed when it is first asked for.
pub struct KnownMistakes<'a, C: Diagnosable> {
    cases: &'a [C],
    right: Vec<OnceCell<Vec<Prediction<C::Outputs>>>>,
    /// What can be said of each case.
    facts: Vec<Facts>,
    /// The mistakes, in the order of the list.
    candidates: Vec<Candidate>,
}

/// What an implementation did with a case.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// The case, by its place among the cases.
    pub case: usize,
    /// The result of each call; `None` if the implementation could not run the case, as after a crash.
    pub results: Option<&'a [CallResult]>,
    /// Whether the results are the expected ones.
    pub passed: bool,
}

impl<'a, C: Diagnosable> KnownMistakes<'a, C> {
    /// The known mistakes on these cases.
    pub fn new(cases: &'a [C]) -> Self {
        let is_possible = |page| mistakes().iter().filter(move |mistake| mistake.rule_on(page).is_some());
        let candidates = cases.first().into_iter().flat_map(|case| is_possible(case.page()));
        Self {
            cases,
            right: cases.iter().map(|_| OnceCell::new()).collect(),
            facts: cases.iter().map(|case| Facts::new(&case.features(), case.lengths())).collect(),
            candidates: candidates.map(Candidate::new).collect(),
        }
    }

    /// Explains the failures of a run by known mistakes.
    ///
    /// That mistake comes first for which the failures that it explains outnumber the passed cases that contradict it
    /// by most; of equals, the one that predicts the most calls in full, then the first of the list. Then the same for
    /// the failures that are left.
    ///
    /// A mistake may be made in a part of the implementation alone, like one type or one layout. Then the passed cases
    /// outside of that part do not contradict it, but a part that takes many words to describe is less likely. That a
    /// call failed says nothing by itself: a mistake has to predict what others gave.
    pub fn diagnose_run(&self, trials: &[Trial<'_>]) -> RunDiagnosis {
        let (passed, failed): (Vec<&Trial<'_>>, Vec<_>) = trials.iter().partition(|trial| trial.passed);
        let mut run = Run {
            known: self,
            passed: passed.iter().map(|trial| trial.case).collect(),
            failed: failed.iter().map(|trial| (trial.case, trial.results)).collect(),
        };
        let mut explanations = run.explain();
        let difference = |trial: &Trial<'_>| self.cases[trial.case].difference(trial.results?, Demand::AsExpected);
        let is_left = |trial: &&Trial<'_>| run.failed.contains_key(&trial.case);
        let mut left: BTreeMap<_, _> =
            failed.iter().copied().filter(is_left).map(|trial| (trial.case, difference(trial))).collect();
        explanations.extend(run.explain_late(&mut left));
        let unexplained = groups(&left).into_iter().map(|(flaw, cases)| Group {
            flaw,
            scope: run.scope_of(&cases),
            cases: cases.iter().map(|&case| self.name(case)).collect(),
        });
        RunDiagnosis { failed: failed.len(), explanations, unexplained: unexplained.collect() }
    }

    fn right(&self, case: usize) -> &[Prediction<C::Outputs>] {
        self.right[case].get_or_init(|| self.cases[case].predicted(&Oracle::default(), None).collect())
    }

    /// The bytes of the inputs of a case.
    fn size(&self, case: usize) -> usize {
        let calls = self.cases[case].calls();
        calls.iter().flat_map(|(inputs, _)| inputs).map(|(_, tensor)| tensor.bytes().len()).sum()
    }

    fn is_legal(&self, case: usize) -> bool {
        self.cases[case].calls().iter().all(|(_, expected)| matches!(expected, Expected::Success(_)))
    }

    fn name(&self, case: usize) -> String {
        self.cases[case].name().to_owned()
    }
}

/// A run, of which the failures that are explained are taken out.
struct Run<'a, C: Diagnosable> {
    known: &'a KnownMistakes<'a, C>,
    passed: Vec<usize>,
    /// What the calls of each failed case did; `None` if it could not be run.
    failed: BTreeMap<usize, Made<'a>>,
}

struct Suspect<'a> {
    candidate: &'a Candidate,
    fits: BTreeMap<usize, Fit>,
    /// The part of the implementation in which it is made.
    scope: Scope,
    /// The passed cases of that part in which it would be wrong.
    contradicted: Vec<usize>,
}

impl Suspect<'_> {
    /// The larger, the likelier.
    fn score(&self) -> (isize, usize, usize) {
        let beyond = self.fits.len() as isize - self.contradicted.len() as isize - self.scope.len() as isize;
        let tell = self.fits.values().filter(|fit| fit.tells).count();
        (beyond, self.fits.values().map(|fit| fit.in_full).sum(), tell)
    }

    /// Whether it is worth naming: it predicts what one of these failures gave, and is not contradicted too often. What
    /// calls gave that failed may have any cause.
    fn counts(&self) -> bool {
        self.fits.values().any(|fit| fit.tells) && self.contradicted.len() <= MOST_CONTRADICTIONS * self.fits.len()
    }
}

impl<'a, C: Diagnosable> Run<'a, C> {
    /// Explains failures as far as known mistakes do.
    fn explain(&mut self) -> Vec<Explanation> {
        let mut suspects = self.suspects();
        let mut explanations = Vec::new();
        while let Some(best) = suspects.iter().map(Suspect::score).max() {
            let mut likeliest = suspects.iter().filter(|suspect| suspect.score() == best);
            let Some(first) = likeliest.next() else { break };
            let alike = likeliest.filter(|other| other.fits.keys().eq(first.fits.keys()));
            let explained: Vec<_> = first.fits.keys().copied().collect();
            let mistake = first.candidate.mistake;
            explanations.push(Explanation {
                mistake: &mistake.name,
                about: &mistake.about,
                rule: mistake.rule_on(self.known.cases[explained[0]].page()).unwrap_or(&mistake.rule),
                cases: explained.iter().map(|&case| self.known.name(case)).collect(),
                passed_nevertheless: first.contradicted.iter().map(|&case| self.known.name(case)).collect(),
                scope: first.scope.clone(),
                or: alike.map(|suspect| suspect.candidate.mistake.name.as_str()).collect(),
            });
            self.failed.retain(|case, _| !explained.contains(case));
            for suspect in &mut suspects {
                suspect.fits.retain(|case, _| self.failed.contains_key(case));
            }
            suspects.retain(Suspect::counts);
        }
        explanations
    }

    /// The candidates that explain something. All are tried on one failure, and those that explain it on every case; then
    /// again on a failure that none of these explains. So a mistake that explains all failures is found by the first.
    fn suspects(&self) -> Vec<Suspect<'a>> {
        // Where calls were refused and no more is wrong, no mistake predicts what others gave.
        let telling = self.failed.iter().filter(|(case, made)| self.tells(**case, **made));
        let mut left: Vec<_> = telling.map(|(case, _)| *case).collect();
        left.sort_by_key(|&case| self.known.size(case));
        let mut candidates: Vec<_> = self.known.candidates.iter().collect();
        let mut suspects: Vec<Suspect<'a>> = Vec::new();
        let fit = |candidate: &Candidate, case| {
            candidate.fit(&self.known.cases[case], self.known.right(case), self.failed[&case])
        };
        while !left.is_empty() {
            // What calls of few tokens give may come from many mistakes, and what those of many give takes long.
            let case = left.remove(left.len() / 2);
            let (explaining, others): (Vec<_>, _) =
                candidates.into_iter().partition(|candidate| fit(candidate, case).is_some_and(|fit| fit.tells));
            candidates = others;
            suspects.extend(explaining.into_iter().filter_map(|candidate| self.suspect(candidate)));
            left.retain(|case| !suspects.iter().any(|suspect| suspect.fits.contains_key(case)));
        }
        // In the order of the list.
        let place = |candidate| self.known.candidates.iter().position(|other| std::ptr::eq(other, candidate));
        suspects.sort_by_key(|suspect| place(suspect.candidate));
        suspects
    }

    /// What speaks for and against a candidate; `None` if too little speaks for it.
    fn suspect(&self, candidate: &'a Candidate) -> Option<Suspect<'a>> {
        let fit = |case| candidate.fit(&self.known.cases[case], self.known.right(case), self.failed[&case]);
        let fits: BTreeMap<_, _> = self.failed.keys().filter_map(|&case| Some((case, fit(case)?))).collect();
        let deviates = |&i: &usize| candidate.deviates(&self.known.cases[i], self.known.right(i));
        let mut contradicted: Vec<_> = self.passed.iter().copied().filter(deviates).collect();
        let scope = self.scope(&fits.keys().copied().collect::<Vec<_>>(), &contradicted);
        contradicted.retain(|&i| scope.contains(&self.known.facts[i]));
        Some(Suspect { candidate, fits, scope, contradicted }).filter(Suspect::counts)
    }

    /// Whether a call gave something wrong, and was not just refused.
    fn tells(&self, case: usize, made: Made<'_>) -> bool {
        let nan = self.known.cases[case].nan();
        let is_wrong = |(right, made): (&Prediction<C::Outputs>, &CallResult)| {
            matches!(made.outcome, Outcome::Done(_)) && !right.fits(made, nan)
        };
        made.is_some_and(|made| self.known.right(case).iter().zip(made).any(is_wrong))
    }

    /// What tells these cases from others, by all legal ones.
    fn scope(&self, inside: &[usize], others: &[usize]) -> Scope {
        let facts = |cases: &[usize]| cases.iter().map(|&i| &self.known.facts[i]).collect::<Vec<_>>();
        let legal: Vec<_> = (0..self.known.cases.len()).filter(|&case| self.known.is_legal(case)).collect();
        Scope::around(&facts(inside), &facts(others), &facts(&legal))
    }

    /// What these failures have in common and the passed cases of legal calls have not.
    fn scope_of(&self, cases: &[usize]) -> Scope {
        let legal = |cases: &[usize]| cases.iter().copied().filter(|&i| self.known.is_legal(i)).collect::<Vec<_>>();
        let inside = legal(cases);
        if inside.len() < cases.len() { Scope::default() } else { self.scope(&inside, &legal(&self.passed)) }
    }

    /// Says of calls that are refused after they have changed the state that they are.
    fn explain_late(&mut self, left: &mut Left) -> Option<Explanation> {
        let is_late = |difference: &Difference| match &difference.mismatch {
            Mismatch::Form { refused, .. } => *refused,
            Mismatch::Elements(elements) => elements.refused,
            _ => false,
        };
        let late = left.iter().filter(|(_, difference)| difference.as_ref().is_some_and(is_late));
        let about =
            "cache or scale is changed before a call is refused: check everything before the first byte is written.";
        let late = late.map(|(&case, _)| case).collect();
        self.explained(left, late, "state-changed-before-refusal", about, "refusal-leaves-memory")
    }

    /// Takes cases out of those that are left.
    fn explained(
        &mut self,
        left: &mut Left,
        cases: Vec<usize>,
        mistake: &'static str,
        about: &'static str,
        rule: &'static str,
    ) -> Option<Explanation> {
        left.retain(|case, _| !cases.contains(case));
        (!cases.is_empty()).then(|| Explanation {
            mistake,
            about,
            rule,
            cases: cases.iter().map(|&case| self.known.name(case)).collect(),
            passed_nevertheless: Vec::new(),
            scope: Scope::default(),
            or: Vec::new(),
        })
    }
}

/// The failures that are left, with the first difference of each that was run.
type Left = BTreeMap<usize, Option<Difference>>;

/// What the calls of a case did; `None` if it could not be run.
type Made<'a> = Option<&'a [CallResult]>;
