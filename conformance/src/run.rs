//! Runs cases on an implementation, and says what becomes of each.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::case::{Case, Suite};
use crate::compare::Difference;
use crate::implementation::{Implementation, Outcome};
use crate::only::Only;
use crate::read::cases;
use crate::report::{Entry, Report, Verdict};

/// Runs every golden case on an implementation.
///
/// # Panics
/// If the golden cases cannot be read, which are part of this library or lie beside its source.
pub fn run(implementation: &(impl Implementation + ?Sized)) -> Report {
    let all = Suite::ALL.into_iter().flat_map(|suite| cases(suite).expect("the golden cases can be read"));
    run_cases(implementation, &all.collect::<Vec<_>>())
}

/// Runs these cases on an implementation.
pub fn run_cases(implementation: &(impl Implementation + ?Sized), cases: &[Case]) -> Report {
    Runner::default().run(implementation, cases)
}

/// How cases are run: by default all, one after the other.
#[derive(Debug, Clone)]
pub struct Runner {
    /// Which cases are run.
    pub only: Only,
    /// How many cases are run at once.
    pub jobs: NonZeroUsize,
}

impl Default for Runner {
    fn default() -> Self {
        Self { only: Only::default(), jobs: NonZeroUsize::MIN }
    }
}

impl Runner {
    /// Runs the cases on an implementation.
    pub fn run(&self, implementation: &(impl Implementation + ?Sized), cases: &[Case]) -> Report {
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut entries = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(case) = cases.get(i) else { return entries };
                entries.push((i, self.entry(implementation, case)));
            }
        };
        let mut entries = thread::scope(|scope| {
            let workers: Vec<_> = (1..self.jobs.get().min(cases.len())).map(|_| scope.spawn(worker)).collect();
            let mut entries = worker();
            for worker in workers {
                entries.extend(worker.join().expect("an implementation's panic is caught"));
            }
            entries
        });
        entries.sort_by_key(|(i, _)| *i);
        Report { implementation: String::new(), entries: entries.into_iter().map(|(_, entry)| entry).collect() }
    }

    fn entry(&self, implementation: &(impl Implementation + ?Sized), case: &Case) -> Entry {
        let (start, properties) = (Instant::now(), case.properties());
        let verdict = match self.only.excludes(&properties) {
            Some(reason) => Verdict::NotRun(reason),
            None => verdict(implementation, case),
        };
        Entry {
            operator: case.operator,
            case: case.name.clone(),
            about: case.about.clone(),
            rules: case.rules.clone(),
            properties,
            tells: case.is_legal() && case.gives_elements(),
            time: start.elapsed(),
            verdict,
        }
    }
}

fn verdict(implementation: &(impl Implementation + ?Sized), case: &Case) -> Verdict {
    let failed = |difference| Verdict::Failed(Box::new(difference));
    let results = match catch_unwind(AssertUnwindSafe(|| implementation.run(case))) {
        Ok(Ok(results)) => results,
        Ok(Err(reason)) => return failed(Difference::could_not_run(reason)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            return failed(Difference::could_not_run(format!("the implementation panicked: {text}")));
        }
    };
    let unsupported = results.iter().take(case.steps.len()).enumerate().find_map(|(i, result)| match &result.outcome {
        Outcome::Unsupported(reason) => Some((i, reason.clone())),
        _ => None,
    });
    match unsupported {
        // What was done before counts.
        Some((i, reason)) => case.difference_of_first(&results[..i]).map_or(Verdict::Unsupported(reason), failed),
        None => case.difference(&results).map_or(Verdict::Passed, failed),
    }
}
