//! What inputs have come to; implementations without kinds of errors.

use std::cell::RefCell;
use std::path::PathBuf;

use kvcache_conformance::{CallResult, Case, Implementation, Outcome, run_cases};

#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Calls, files or operations.
    pub all: usize,
    pub accepted: usize,
}

thread_local! {
    static TALLY: RefCell<Tally> = RefCell::default();
}

pub fn count(is_accepted: bool) {
    TALLY.with_borrow_mut(|tally| {
        tally.all += 1;
        tally.accepted += usize::from(is_accepted);
    });
}

/// Fails if the case does, and counts it.
pub fn passes(implementation: &impl Implementation, case: &Case) {
    let report = run_cases(implementation, std::slice::from_ref(case));
    assert!(report.failed() == 0, "{}", report.text());
    count(true);
}

/// What this thread's inputs have come to since this was asked last.
pub fn tally() -> Tally {
    TALLY.take()
}

/// A directory for files, in memory where the system has such a place.
pub fn directory() -> PathBuf {
    let places = ["/dev/shm".into(), std::env::temp_dir()];
    places.into_iter().find(|path: &PathBuf| path.is_dir()).expect("a directory")
}

/// An implementation that says what it refuses, but not why: a call that breaks several rules may be refused for any.
pub struct Kindless<T>(pub T);

impl<T: Implementation> Implementation for Kindless<T> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let mut results = self.0.run(case)?;
        for result in &mut results {
            if let Outcome::Refused { kind, .. } = &mut result.outcome {
                *kind = None;
            }
        }
        Ok(results)
    }
}
