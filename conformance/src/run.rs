//! The interface to an implementation under test; runs cases on one, and says what becomes of each.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::case::Case;
use crate::difference::Difference;
use crate::profile::{Profile, Standing};
use crate::report::{Entry, Report, Verdict};
use crate::suite::Suite;
use crate::tensor::Tensor;

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

/// An implementation of the operators of a suite, whose cases are `C`.
pub trait Implementation<C: Suite = Case> {
    /// Makes the node of the case and runs its calls, one after the other on the same state; gives the result of each.
    ///
    /// # Errors
    /// A message, if the case could not be run; it then fails. A call that the operator refuses is not an error here
    /// but an [`Outcome::Refused`](crate::Outcome::Refused).
    fn run(&self, case: &C) -> Result<Vec<CallResult>, String>;

    /// Why the implementation cannot run this case, if so; the case is then counted as skipped.
    fn cannot_run(&self, _case: &C) -> Option<String> {
        None
    }
}

/// What is demanded of an implementation that runs a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// What the case says.
    AsExpected,
    /// To refuse every call, with whatever error, and to leave the state as it was: it does not do what the case needs.
    Refusal,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallResult {
    /// Its outputs, or its refusal.
    pub outcome: Outcome,
    /// `cache` after the call, if the operator has one.
    pub cache: Option<Tensor>,
    /// `scale` after the call, if given.
    pub scale: Option<Tensor>,
}

/// How a call ended; `O` is what it gives: the outputs, by position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<O = Vec<Tensor>> {
    /// It gave these outputs.
    Done(O),
    /// It was refused.
    Refused {
        /// The kind of error; `None` if the implementation has messages only.
        kind: Option<String>,
        /// The error message.
        message: String,
    },
}

impl<O> Outcome<O> {
    /// A refusal of an implementation that has no kinds of errors.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::Refused { kind: None, message: message.into() }
    }

    /// The same outcome with what is made of the outputs.
    pub fn map<P>(self, outputs: impl FnOnce(O) -> P) -> Outcome<P> {
        match self {
            Self::Done(given) => Outcome::Done(outputs(given)),
            Self::Refused { kind, message } => Outcome::Refused { kind, message },
        }
    }
}
