//! What cases have in common: the part of an implementation in which something is wrong. By it a
//! report is diagnosed.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::candidate::Diagnosable;
use super::explanation::RunDiagnosis;
use super::run::{KnownMistakes, Trial};
use crate::report::{Report, Verdict};
use crate::run::{CallResult, Implementation};
use crate::suite::{Diagnosis, Features, Suite};

/// What of a case can tell parts of an implementation apart.
#[derive(Debug, Clone)]
pub struct Facts {
    types: [(&'static str, &'static str); 3],
    /// Attributes and sizes.
    numbers: Vec<(&'static str, i64)>,
}

/// Conditions on a case that hold together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope(Vec<Condition>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Type(&'static str, &'static str),
    Is(&'static str, i64),
    AtLeast(&'static str, i64),
}

/// More conditions describe a coincidence rather than a part of an implementation.
const MOST_CONDITIONS: usize = 3;

/// Conditions are given if it is no likelier that as many cases meet one such set of conditions by chance.
const MOST_LIKELY_BY_CHANCE: f64 = 0.05;

impl Facts {
    /// What the features of a case say, and its lengths.
    pub(super) fn new(features: &Features, [tokens, kvlen]: [i64; 2]) -> Self {
        let of_type = |name| (name, features.types.get(name).map_or("absent", |element| element.name()));
        let numbers = features.numbers.iter().map(|(&name, &value)| (name, value));
        // It says which part of the cache a call is given, and no code depends on it.
        let parts = numbers.filter(|(name, _)| *name != "layer_idx");
        Self {
            types: ["T1", "T2", "T3"].map(of_type),
            numbers: parts.chain([("tokens", tokens), ("kvlen", kvlen)]).collect(),
        }
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.numbers.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }
}

impl Condition {
    fn holds(self, facts: &Facts) -> bool {
        match self {
            Self::Type(name, value) => facts.types.contains(&(name, value)),
            Self::Is(name, value) => facts.number(name) == Some(value),
            Self::AtLeast(name, value) => facts.number(name).is_some_and(|number| number >= value),
        }
    }
}

impl Scope {
    /// The conditions that hold in all cases of `inside` and exclude the most of `others`, as few as possible; none if
    /// they leave more than a quarter of these, or more than hold inside, or say little among the cases of `all`.
    pub(super) fn around(inside: &[&Facts], others: &[&Facts], all: &[&Facts]) -> Self {
        let Some((first, rest)) = inside.split_first().filter(|_| !others.is_empty()) else { return Self::default() };
        let types = first.types.iter().map(|&(name, value)| Condition::Type(name, value));
        let numbers = first.numbers.iter().flat_map(|&(name, value)| {
            let least = inside.iter().map(|facts| facts.number(name)).min().flatten();
            [Some(Condition::Is(name, value)), least.map(|least| Condition::AtLeast(name, least))]
        });
        let holds_in_rest = |condition: &Condition| rest.iter().all(|facts| condition.holds(facts));
        let shared: Vec<_> = types.chain(numbers.flatten()).filter(holds_in_rest).collect();
        let mut scope = Self::default();
        let mut left: Vec<_> = others.to_vec();
        while !left.is_empty() && scope.0.len() < MOST_CONDITIONS {
            let excluded = |condition: &Condition| left.iter().filter(|facts| !condition.holds(facts)).count();
            // The first of the best: types before attributes, an exact value before a bound.
            let Some(best) = shared.iter().rev().max_by_key(|condition| excluded(condition)) else { break };
            if excluded(best) == 0 {
                break;
            }
            scope.0.push(*best);
            left.retain(|facts| best.holds(facts));
        }
        let share = all.iter().filter(|facts| scope.contains(facts)).count() as f64 / all.len().max(1) as f64;
        let by_chance = share.powi(inside.len() as i32) * shared.len() as f64;
        let separates = 4 * left.len() <= others.len() && left.len() <= inside.len();
        if separates && by_chance < MOST_LIKELY_BY_CHANCE { scope } else { Self::default() }
    }

    /// Whether all conditions hold.
    pub(super) fn contains(&self, facts: &Facts) -> bool {
        self.0.iter().all(|condition| condition.holds(facts))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is everything.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// A sentence that begins with a space; none if it is everything.
    pub(super) fn sentence(&self) -> String {
        if self.is_everything() { String::new() } else { format!(" Only where {self}.") }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, condition) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(" and ")?;
            }
            match condition {
                Condition::Type(name, value) => write!(f, "{name} is {value}")?,
                Condition::Is(name, value) => write!(f, "{name} is {value}")?,
                Condition::AtLeast(name, value) => write!(f, "{name} is at least {value}")?,
            }
        }
        Ok(())
    }
}

/// An implementation whose results are kept, so that a report on it can be diagnosed.
#[derive(Debug)]
pub struct Recorder<'a, R: ?Sized> {
    implementation: &'a R,
    /// By the name of the case.
    results: Mutex<HashMap<String, Vec<CallResult>>>,
}

impl<C: Suite, R: Implementation<C> + ?Sized> Implementation<C> for Recorder<'_, R> {
    fn run(&self, case: &C) -> Result<Vec<CallResult>, String> {
        let results = self.implementation.run(case)?;
        self.results().insert(case.name().to_owned(), results.clone());
        Ok(results)
    }

    fn cannot_run(&self, case: &C) -> Option<String> {
        self.implementation.cannot_run(case)
    }
}

impl<'a, R: ?Sized> Recorder<'a, R> {
    /// Keeps the results of an implementation.
    pub fn new(implementation: &'a R) -> Self {
        Self { implementation, results: Mutex::default() }
    }

    fn results(&self) -> MutexGuard<'_, HashMap<String, Vec<CallResult>>> {
        // A thread that panicked while it held the lock left a whole entry or none.
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Diagnoses the failures of a report on these cases: gives each that can be explained its diagnosis, and the report
    /// what explains most of them. Cases that had to be refused by a profile are left alone.
    pub fn diagnose<C: Diagnosable>(&self, report: &mut Report, cases: &[C]) -> RunDiagnosis {
        let known = KnownMistakes::new(cases);
        let results = self.results();
        let places: HashMap<_, _> = cases.iter().enumerate().map(|(i, case)| (case.name(), i)).collect();
        let of_suite = |suite: &str| suite == C::NAME;
        let trials: Vec<_> = (report.entries.iter())
            .filter(|entry| of_suite(entry.suite) && entry.outside.is_none())
            .filter_map(|entry| {
                let results = results.get(&entry.case).map(Vec::as_slice);
                let passed = match entry.verdict {
                    Verdict::Passed => true,
                    Verdict::Failed(..) => false,
                    Verdict::Unsupported(_) | Verdict::NotRun(_) => return None,
                };
                Some(Trial { case: *places.get(entry.case.as_str())?, results, passed })
            })
            .collect();
        let diagnosis = known.diagnose_run(&trials);
        // A case's diagnosis is the one that the whole run speaks for.
        let mut of_cases = HashMap::new();
        for explanation in &diagnosis.explanations {
            let diagnosis = Diagnosis {
                mistake: explanation.mistake.to_owned(),
                about: explanation.about.to_owned(),
                rule: explanation.rule.to_owned(),
            };
            of_cases.extend(explanation.cases.iter().map(|case| (case.clone(), diagnosis.clone())));
        }
        for entry in report.entries.iter_mut().filter(|entry| of_suite(entry.suite)) {
            if let Verdict::Failed(_, diagnosis) = &mut entry.verdict {
                *diagnosis = of_cases.remove(&entry.case);
            }
        }
        report.conclusions.extend(diagnosis.to_string().lines().map(str::to_owned));
        diagnosis
    }
}
