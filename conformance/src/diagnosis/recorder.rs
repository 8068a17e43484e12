//! Diagnoses a report.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::candidate::Diagnosable;
use super::explanation::RunDiagnosis;
use super::run::{KnownMistakes, Trial};
use crate::implementation::{CallResult, Implementation};
use crate::report::{Report, Verdict};
use crate::suite::{Diagnosis, Suite};

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
