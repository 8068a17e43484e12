//! What inputs have come to.

use std::cell::RefCell;
use std::path::PathBuf;

use kvcache_conformance::Report;

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

/// Fails if a case did, and counts it.
pub fn report(report: &Report) {
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
