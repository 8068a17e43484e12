//! The diagnosis of a whole run.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use super::candidate::{Candidate, Fit};
use super::diagnosable::{Diagnosable, MadeCall, Predict};
use super::known::{KnownMistakes, Trial};
use super::near::{self, Near};
use super::refusals::Refusals;
use super::scope::Scope;
use crate::mistakes::Mistake;

/// For each failure that a mistake explains, so many cases may have passed that it would fail.
const MOST_CONTRADICTIONS: usize = 4;

/// How much work is spent on pairs of mistakes, in what [`Diagnosable::size`] counts: seconds, whatever failed.
const MOST_WORK: usize = 1 << 26;

/// What the failures of a run come from.
#[derive(Debug, Clone, Default)]
pub struct RunDiagnosis {
    /// How many cases failed.
    pub failed: usize,
    /// What explains them, each failure once. What explains most of those that are left comes first.
    pub explanations: Vec<Explanation>,
    /// The names of the failed cases that no known mistake explains.
    pub undiagnosed: Vec<String>,
    /// What these have in common and the cases that passed have not.
    pub undiagnosed_scope: Scope,
    /// How many pairs of mistakes were not tried on these, because that would have been too much work.
    pub pairs_left_out: usize,
}

/// A mistake, or two that are made together, and the failures that come from it.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The mistake, or the two.
    pub mistakes: Vec<&'static str>,
    /// For each, what is probably wrong, and where to look for it.
    pub about: Vec<&'static str>,
    /// For each, the rule of the operator's page that it breaks.
    pub rules: Vec<&'static str>,
    /// The names of the failed cases that it explains.
    pub cases: Vec<String>,
    /// The names of the cases that passed although the mistake would be wrong there: it is then made in a part of the
    /// implementation alone, like one type or one layout.
    pub passed_nevertheless: Vec<String>,
    /// That part, as far as it can be told by types and attributes: passed cases in it are left in
    /// `passed_nevertheless`.
    pub scope: Scope,
    /// Other mistakes that explain the same failures, and are as likely.
    pub or: Vec<String>,
}

impl fmt::Display for RunDiagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |count: usize| match self.failed {
            1 => "the failure is".to_owned(),
            failed => format!("{count} of {failed} failures are"),
        };
        let explanation = |explanation: &Explanation| {
            let Explanation { mistakes, about, cases, passed_nevertheless, scope, or, .. } = explanation;
            let or = if or.is_empty() { String::new() } else { format!(" (or {})", or.join(", ")) };
            let part = match passed_nevertheless.len() {
                0 => String::new(),
                1 => " Not in all of the implementation: 1 case passed that it would fail.".to_owned(),
                passed => format!(" Not in all of the implementation: {passed} cases passed that it would fail."),
            };
            let only = if scope.is_everything() { String::new() } else { format!(" Only where {scope}.") };
            let mistakes = mistakes.join(" with ");
            format!("{} what {mistakes} gives{or}: {}{only}{part}", of(cases.len()), about.join(" "))
        };
        let mut lines: Vec<_> = self.explanations.iter().map(explanation).collect();
        if !self.undiagnosed.is_empty() {
            let of = of(self.undiagnosed.len());
            let only = match &self.undiagnosed_scope {
                scope if scope.is_everything() => String::new(),
                scope => format!(": all of them are of cases where {scope}"),
            };
            let untried = match self.pairs_left_out {
                0 => String::new(),
                pairs => format!(" ({pairs} pairs of mistakes were not tried: too much work)"),
            };
            lines.push(format!("{of} what no known mistake gives{only}{untried}"));
        }
        f.write_str(&lines.join("\n"))
    }
}

impl<C: Diagnosable> KnownMistakes<'_, C> {
    /// Explains the failures of a run by known mistakes.
    ///
    /// That mistake comes first for which the failures that it explains outnumber the passed cases that contradict it
    /// by most; of equals, the one that predicts the most calls in full, then the first of the list. Then the same for
    /// the failures that are left. What is left in the end may come from two mistakes at once: pairs with one that was
    /// found are tried, or of all where none was found, as far as the work allows that is spent on them. There are so
    /// many pairs that some explain a little of anything: one counts only if no case contradicts it, if it explains as
    /// many failures as it takes new mistakes and conditions to describe it, and by what calls gave, not by that legal
    /// ones were refused.
    ///
    /// Failures that nothing explains may be near to what is right, as where a rounding is done at random: that is said
    /// of them, if it holds for most that are left. They contradict a mistake that is wrong there in another way.
    ///
    /// A mistake may be made in a part of the implementation alone, like one type or one layout. Then the passed cases
    /// outside of that part do not contradict it, but a part that takes many words to describe is less likely. That a
    /// legal call was refused says little by itself: a mistake that refuses calls has to explain it without any
    /// contradiction, and more than chance would.
    pub fn diagnose_run(&self, trials: &[Trial<'_, C::Result>]) -> RunDiagnosis {
        let failed = trials.iter().filter(|trial| !trial.passed);
        let made = |trial: &Trial<'_, C::Result>| trial.results.map(|results| self.cases[trial.case].made(results));
        let failed: BTreeMap<_, _> = failed.map(|trial| (trial.case, made(trial))).collect();
        let passed: Vec<_> = trials.iter().filter(|trial| trial.passed).map(|trial| trial.case).collect();
        let refusals = self.refusals(&passed, &failed);
        let wrong = trials.iter().filter(|trial| !trial.passed);
        let near = wrong.filter_map(|trial| Some((trial.case, self.cases[trial.case].near(trial.results?)?))).collect();
        let mut run = Run { known: self, passed, failed, near, found: Vec::new(), refusals };
        let count = run.failed.len();
        let mut explanations = run.explain(&self.single);
        run.found = explanations.iter().flat_map(|explanation| explanation.mistakes.clone()).collect();
        let (pairs, pairs_left_out) = run.pairs();
        explanations.extend(run.explain(&pairs));
        explanations.extend(run.explain_near());
        let undiagnosed = run.failed.keys().map(|&case| self.cases[case].name().to_owned()).collect();
        let undiagnosed_scope = run.scope_of_failed();
        RunDiagnosis { failed: count, explanations, undiagnosed, undiagnosed_scope, pairs_left_out }
    }

    /// The refusals in cases all of whose calls are legal.
    fn refusals(&self, passed: &[usize], failed: &Failed<C>) -> Refusals {
        let is_legal = |i: usize| self.right(i).iter().all(C::Predicted::is_legal);
        let failed = failed.iter().filter(|(case, _)| is_legal(**case)).map(|(&case, made)| (case, made.as_deref()));
        Refusals::new(passed.iter().filter(|&&case| is_legal(case)).count(), failed)
    }
}

/// A run, of which the failures that are explained are taken out.
struct Run<'a, 'b, C: Diagnosable> {
    known: &'a KnownMistakes<'b, C>,
    passed: Vec<usize>,
    failed: Failed<C>,
    /// The failures that are near to what is right.
    near: BTreeMap<usize, Near>,
    /// The mistakes that explain something by themselves.
    found: Vec<&'static str>,
    /// The legal calls that were refused.
    refusals: Refusals,
}

/// What the calls of each failed case did; `None` if it could not be run.
type Failed<C> = BTreeMap<usize, Option<Vec<<C as Diagnosable>::Made>>>;

/// A candidate that explains something.
struct Suspect<'a, C: Diagnosable> {
    candidate: &'a Candidate<C>,
    /// The failures that it explains.
    fits: BTreeMap<usize, Fit>,
    /// The part of the implementation in which it is made.
    scope: Scope,
    /// The cases of that part in which it would be wrong otherwise than they were, by what is known of them: they
    /// passed, or failed nearly.
    contradicted: Vec<usize>,
}

impl<C: Diagnosable> Suspect<'_, C> {
    /// The larger, the likelier.
    fn score(&self) -> (isize, usize, usize) {
        let beyond = self.fits.len() as isize - self.contradicted.len() as isize - self.scope.len() as isize;
        let tell = self.fits.values().filter(|fit| fit.tells).count();
        (beyond, self.fits.values().map(|fit| fit.in_full).sum(), tell)
    }

    /// Whether it is worth naming: it predicts what one of these failures gave, or it may have made all of them fail, and
    /// nothing contradicts that. What gave no results at all may have any cause.
    fn counts(&self, run: &Run<'_, '_, C>) -> bool {
        let Run { known, failed, refusals, .. } = run;
        if self.fits.values().all(|fit| fit.refuses) && !self.fits.is_empty() {
            let is_left = |case| failed.contains_key(&case);
            return self.contradicted.is_empty()
                && refusals.are_explained_by(self.fits.keys().copied(), is_left, known.single.len());
        }
        if !self.is_single_or_likely(run) {
            return false;
        }
        // That an illegal call was made names the rule that was not checked. Other results may be alike by accident.
        let accepts = self.fits.values().all(|fit| fit.accepts);
        if !accepts && self.contradicted.len() > MOST_CONTRADICTIONS * self.fits.len() {
            return false;
        }
        let may_be_all = failed.len() > 1 && self.fits.len() == failed.len() && self.contradicted.is_empty();
        self.fits.values().any(|fit| fit.tells) || may_be_all && failed.values().any(Option::is_some)
    }

    /// Whether it is a single mistake, or a pair with more to speak for it than chance.
    fn is_single_or_likely(&self, run: &Run<'_, '_, C>) -> bool {
        let mistakes = &self.candidate.mistakes;
        let new = mistakes.iter().filter(|(mistake, _)| !run.is_found(mistake)).count();
        mistakes.len() == 1 || self.contradicted.is_empty() && self.fits.len() >= new + self.scope.len()
    }

    fn name(&self) -> String {
        self.candidate.mistakes.iter().map(|(mistake, _)| mistake.name).collect::<Vec<_>>().join(" with ")
    }
}

impl<C: Diagnosable> Run<'_, '_, C> {
    /// Explains failures as far as the candidates do.
    fn explain(&mut self, candidates: &[Candidate<C>]) -> Vec<Explanation> {
        let mut suspects: Vec<_> = candidates.iter().filter_map(|candidate| self.suspect(candidate)).collect();
        let mut explanations = Vec::new();
        while let Some(best) = suspects.iter().map(Suspect::score).max() {
            let mut likeliest = suspects.iter().filter(|suspect| suspect.score() == best);
            let Some(first) = likeliest.next() else { break };
            let alike = likeliest.filter(|other| other.fits.keys().eq(first.fits.keys()));
            let name = |&case: &usize| self.known.cases[case].name().to_owned();
            let mistakes = &first.candidate.mistakes;
            explanations.push(Explanation {
                mistakes: mistakes.iter().map(|(mistake, _)| mistake.name).collect(),
                about: mistakes.iter().map(|(mistake, _)| mistake.about).collect(),
                rules: mistakes.iter().map(|(_, rule)| *rule).collect(),
                cases: first.fits.keys().map(name).collect(),
                passed_nevertheless: first
                    .contradicted
                    .iter()
                    .filter(|case| !self.near.contains_key(case))
                    .map(name)
                    .collect(),
                scope: first.scope.clone(),
                or: alike.map(Suspect::name).collect(),
            });
            let explained: Vec<_> = first.fits.keys().copied().collect();
            self.failed.retain(|case, _| !explained.contains(case));
            for suspect in &mut suspects {
                suspect.fits.retain(|case, _| self.failed.contains_key(case));
            }
            suspects.retain(|suspect| suspect.counts(self));
        }
        explanations
    }

    /// What speaks for and against a candidate; `None` if nothing speaks for it.
    fn suspect<'c>(&self, candidate: &'c Candidate<C>) -> Option<Suspect<'c, C>> {
        let fit = |(&i, made): (&usize, &Option<Vec<C::Made>>)| {
            Some((i, candidate.fit(i, &self.known.cases[i], self.known.right(i), made.as_deref())?))
        };
        let is_pair = candidate.mistakes.len() > 1;
        let says_enough = |(_, fit): &(usize, Fit)| !is_pair || fit.tells && !fit.refuses;
        let fits = self.failed.iter().filter_map(fit).filter(says_enough).collect();
        let suspect = self.suspect_of(candidate, fits)?;
        let suspect = if suspect.contradicted.is_empty() { Some(suspect) } else { self.less_contradicted(suspect) };
        suspect.filter(|suspect| suspect.counts(self))
    }

    /// A contradicted suspect without what a mistake explains only where nothing contradicts it, that legal calls were
    /// refused. If it explains nothing else, it explains those that say the same.
    fn less_contradicted<'c>(&self, Suspect { candidate, fits, .. }: Suspect<'c, C>) -> Option<Suspect<'c, C>> {
        let (refused, made): (BTreeMap<_, _>, BTreeMap<_, _>) = fits.into_iter().partition(|(_, fit)| fit.refuses);
        if !made.is_empty() {
            return self.suspect_of(candidate, made);
        }
        let suspects =
            self.refusals.by_wording(&refused).into_iter().filter_map(|fits| self.suspect_of(candidate, fits));
        suspects.filter(|suspect| suspect.contradicted.is_empty()).max_by_key(Suspect::score)
    }

    /// A candidate with the failures that it explains, which are not none.
    fn suspect_of<'c>(&self, candidate: &'c Candidate<C>, fits: BTreeMap<usize, Fit>) -> Option<Suspect<'c, C>> {
        if fits.is_empty() {
            return None;
        }
        let near = self.near.keys().filter(|case| self.failed.contains_key(case) && !fits.contains_key(case));
        let known = self.passed.iter().chain(near).copied();
        let mut contradicted: Vec<_> = known.filter(|&i| self.deviates(candidate, i)).collect();
        let facts = |i: usize| &self.known.facts[i];
        let inside: Vec<_> = fits.keys().map(|&i| facts(i)).collect();
        let scope = match fits.len() {
            1 => Scope::default(), // Of one case everything is special.
            _ => Scope::around(&inside, &contradicted.iter().map(|&i| facts(i)).collect::<Vec<_>>()),
        };
        contradicted.retain(|&i| scope.contains(facts(i)));
        Some(Suspect { candidate, fits, scope, contradicted })
    }

    fn is_found(&self, mistake: &Mistake) -> bool {
        self.found.contains(&mistake.name)
    }

    /// Says of failures that are left that they are near to what is right, if most are.
    fn explain_near(&mut self) -> Option<Explanation> {
        let of_kind = |(mistake, is_of): near::Kind| {
            let near = self.near.iter().filter(|(case, near)| self.failed.contains_key(case) && is_of(**near));
            (mistake, near.map(|(&case, _)| case).collect::<Vec<_>>())
        };
        let kinds = near::KINDS.map(of_kind);
        let most = kinds.iter().map(|(_, cases)| cases.len()).max()?;
        let (mistake, cases) = kinds.into_iter().find(|(_, cases)| cases.len() == most)?;
        if 2 * most <= self.failed.len() {
            return None;
        }
        self.failed.retain(|case, _| !cases.contains(case));
        Some(Explanation {
            mistakes: vec![mistake.name],
            about: vec![mistake.about],
            rules: vec![C::rule_of(mistake)?],
            cases: cases.iter().map(|&case| self.known.cases[case].name().to_owned()).collect(),
            passed_nevertheless: Vec::new(),
            scope: Scope::default(),
            or: Vec::new(),
        })
    }

    /// What the failures that are left have in common and the passed cases have not.
    fn scope_of_failed(&self) -> Scope {
        if self.failed.len() < 2 {
            return Scope::default();
        }
        let facts = |i: &usize| &self.known.facts[*i];
        Scope::around(
            &self.failed.keys().map(facts).collect::<Vec<_>>(),
            &self.passed.iter().map(facts).collect::<Vec<_>>(),
        )
    }

    fn deviates(&self, candidate: &Candidate<C>, i: usize) -> bool {
        candidate.deviates(i, &self.known.cases[i], self.known.right(i))
    }

    /// The pairs that are worth trying, as far as the work allows, and how many were not looked at for it.
    fn pairs(&self) -> (Vec<Candidate<C>>, usize) {
        // Those that were found, and of the others those that change what the smallest of the failed cases gives.
        let size = |i: &usize| self.known.cases[*i].size();
        let tells = |(_, made): &(&usize, &Option<Vec<C::Made>>)| {
            made.as_ref().is_some_and(|made| !made.iter().all(C::Made::is_refused))
        };
        let Some(smallest) = self.failed.iter().filter(tells).map(|(&i, _)| i).min_by_key(size) else {
            return Default::default();
        };
        let candidates = self.known.single.iter().map(|candidate| (candidate, candidate.mistakes[0]));
        let single: Vec<_> = candidates
            .filter(|(candidate, (mistake, _))| self.is_found(mistake) || self.deviates(candidate, smallest))
            .map(|(_, mistake)| mistake)
            .collect();
        let with_later =
            |(i, &one): (usize, &_)| single[i + 1..].iter().map(move |&other| [one, other]).collect::<Vec<_>>();
        let of_found = |pair: &[(&Mistake, _); 2]| pair.iter().filter(|(mistake, _)| self.is_found(mistake)).count();
        let mut pairs: Vec<_> = single.iter().enumerate().flat_map(with_later).collect();
        // Of mistakes that were found any with another, else any.
        pairs.retain(|pair| self.found.is_empty() || of_found(pair) > 0);
        pairs.sort_by_key(|pair| Reverse(of_found(pair)));
        // What does not explain the smallest explains too little.
        let explains = |pair: &Candidate<C>| {
            let made = self.failed[&smallest].as_deref();
            pair.fit(smallest, &self.known.cases[smallest], self.known.right(smallest), made).is_some()
        };
        let all = self.failed.keys().chain(&self.passed).map(size).fold(0, usize::saturating_add);
        let (mut worth_trying, mut work, mut left_out) = (Vec::new(), 0, 0);
        for pair in pairs {
            if work > MOST_WORK {
                left_out += 1;
                continue;
            }
            let are_found = of_found(&pair) == 2;
            let candidate = Candidate::new(pair.to_vec(), self.known.cases.len());
            work = work.saturating_add(size(&smallest));
            if are_found || explains(&candidate) {
                work = work.saturating_add(all);
                worth_trying.push(candidate);
            }
        }
        (worth_trying, left_out)
    }
}
