//! Diagnoses a report.

use std::cell::RefCell;
use std::collections::HashMap;

use super::known::{KnownMistakes, Trial};
use super::run::RunDiagnosis;
use crate::case::Case;
use crate::implementation::{CallResult, Implementation};
use crate::oracle::Inputs;
use crate::report::{Report, Verdict};
use crate::suite::{Diagnosis, Suite};

/// An implementation whose results are kept, so that a report on it can be diagnosed.
pub struct Recorder<'a, A, I> {
    implementation: &'a dyn Implementation<A, I>,
    /// By the name of the case.
    results: RefCell<HashMap<String, Vec<CallResult>>>,
}

impl<'a, A, I> Recorder<'a, A, I> {
    /// Keeps the results of an implementation.
    pub fn new(implementation: &'a dyn Implementation<A, I>) -> Self {
        Self { implementation, results: RefCell::default() }
    }
}

impl<A, I> Implementation<A, I> for Recorder<'_, A, I> {
    fn run(&self, case: &Case<A, I>) -> Result<Vec<CallResult>, String> {
        let results = self.implementation.run(case)?;
        self.results.borrow_mut().insert(case.name.clone(), results.clone());
        Ok(results)
    }

    fn cannot_run(&self, case: &Case<A, I>) -> Option<String> {
        self.implementation.cannot_run(case)
    }
}

impl<A, I: Inputs<A>> Recorder<'_, A, I>
where
    Case<A, I>: Suite<Result = CallResult>,
{
    /// Diagnoses the failures of a report on these cases: gives each that can be explained its diagnosis, and says what
    /// explains most of them. Cases that had to be refused by a profile are left alone.
    pub fn diagnose(&self, report: &mut Report, cases: &[Case<A, I>]) -> RunDiagnosis {
        let known = KnownMistakes::new(cases);
        let results = self.results.borrow();
        let places: HashMap<_, _> = cases.iter().enumerate().map(|(i, case)| (case.name(), i)).collect();
        let of_suite = |suite: &str| suite == <Case<A, I> as Suite>::NAME;
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
            let with_others = match &explanation.mistakes[1..] {
                [] => String::new(),
                others => format!(" (with {})", others.join(", ")),
            };
            for case in &explanation.cases {
                let diagnosis = Diagnosis {
                    mistake: explanation.mistakes[0].to_owned(),
                    about: format!("{}{with_others}", explanation.about[0]),
                    rule: explanation.rules[0].to_owned(),
                };
                of_cases.insert(case.clone(), diagnosis);
            }
        }
        for entry in report.entries.iter_mut().filter(|entry| of_suite(entry.suite)) {
            if let Verdict::Failed(_, diagnosis) = &mut entry.verdict {
                *diagnosis = of_cases.remove(&entry.case);
            }
        }
        diagnosis
    }
}
