//! Runs cases on an implementation, and says what becomes of each.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::difference::Difference;
use crate::implementation::{CallResult, Demand, Implementation};
use crate::profile::{Profile, Standing};
use crate::report::{Entry, Report, Verdict};
use crate::suite::Suite;

/// Runs the cases on an implementation.
pub fn run<C: Suite>(implementation: &(impl Implementation<C> + ?Sized), cases: &[C]) -> Report {
    let runner = Runner::default();
    runner.of(cases.iter().map(|case| runner.entry(implementation, case)).collect())
}

/// How cases are run: by default all, one after the other, by no profile.
#[derive(Debug, Clone)]
pub struct Runner<'a> {
    /// What the implementation declares that it does.
    pub profile: Option<&'a Profile>,
    /// Cases whose names do not contain this are left out.
    pub filter: String,
    /// How many cases are run at once.
    pub jobs: NonZeroUsize,
}

impl Default for Runner<'_> {
    fn default() -> Self {
        Self { profile: None, filter: String::new(), jobs: NonZeroUsize::MIN }
    }
}

impl Runner<'_> {
    /// Runs the cases on an implementation that several threads may use at once.
    pub fn run<C: Suite>(&self, implementation: &(impl Implementation<C> + Sync + ?Sized), cases: &[C]) -> Report {
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
        self.of(entries.into_iter().map(|(_, entry)| entry).collect())
    }

    fn of(&self, entries: Vec<Entry>) -> Report {
        let profile = self.profile.map(|profile| profile.name.clone());
        Report { profile, entries, ..Report::default() }
    }

    fn entry<C: Suite>(&self, implementation: &(impl Implementation<C> + ?Sized), case: &C) -> Entry {
        let start = Instant::now();
        let standing = self.profile.map_or(Standing::Within, |profile| profile.standing(&case.features()));
        let (mut outside, mut demand) = (None, Demand::AsExpected);
        if let Standing::MustRefuse(reason) = &standing {
            (outside, demand) = (Some(reason.clone()), Demand::Refusal);
        }
        let verdict = if !case.name().contains(&self.filter) {
            Verdict::NotRun(format!("the name does not contain {:?}", self.filter))
        } else if let Standing::Unsupported(reason) = standing {
            Verdict::Unsupported(reason)
        } else if let Some(reason) = implementation.cannot_run(case) {
            Verdict::Unsupported(reason)
        } else {
            verdict(case, demand, || implementation.run(case))
        };
        Entry {
            suite: C::NAME,
            page: case.page(),
            case: case.name().to_owned(),
            about: case.about().to_owned(),
            rules: case.rules().to_vec(),
            outside,
            time: start.elapsed(),
            verdict,
        }
    }
}

fn verdict<C: Suite>(case: &C, demand: Demand, run: impl FnOnce() -> Result<Vec<CallResult>, String>) -> Verdict {
    let failed = |difference| Verdict::Failed(Box::new(difference), None);
    let results = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(results)) => results,
        Ok(Err(reason)) => return failed(Difference::could_not_run(reason)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            return failed(Difference::could_not_run(format!("the implementation panicked: {text}")));
        }
    };
    case.difference(&results, demand).map_or(Verdict::Passed, failed)
}
