//! What inputs have come to: whether targets reach what they are for.

use std::cell::RefCell;
use std::collections::BTreeSet;

/// What the inputs of a thread have come to.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Calls, files or operations.
    pub all: usize,
    /// Those that were accepted.
    pub accepted: usize,
    /// Of which kinds these were.
    pub kinds: BTreeSet<String>,
}

thread_local! {
    static TALLY: RefCell<Tally> = RefCell::default();
}

/// Counts one.
pub fn count(is_accepted: bool) {
    TALLY.with_borrow_mut(|tally| {
        tally.all += 1;
        tally.accepted += usize::from(is_accepted);
    });
}

/// Notes the kinds of one that is accepted.
pub fn note<const N: usize>(kinds: [String; N]) {
    TALLY.with_borrow_mut(|tally| tally.kinds.extend(kinds));
}

/// What this thread's inputs have come to since this was asked last.
pub fn tally() -> Tally {
    TALLY.take()
}
