//! What inputs have come to: whether targets reach what they are for.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;

use kvcache_conformance::{Expected, Report, Types};
use kvcache_op::ElementType;

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

/// Notes the types of a legal call, and the code of its layout and mode.
pub fn note(operator: &str, types: Types, quant_bit: i64, place: i64) {
    let Types { t1, t2, t3 } = types;
    let t3 = t3.filter(|_| quant_bit != 0).map_or("none", ElementType::name);
    let kinds = [format!("{operator} {quant_bit} {t1} {t2} {t3}"), format!("{operator} place {place}")];
    TALLY.with_borrow_mut(|tally| tally.kinds.extend(kinds));
}

/// Notes a kind by its name.
pub fn note_kind(kind: String) {
    TALLY.with_borrow_mut(|tally| tally.kinds.insert(kind));
}

/// Notes what a call must do: to succeed, or to be refused for this.
pub fn note_expected(expected: &Expected) {
    match expected {
        Expected::Success(_) => note_kind("success".to_owned()),
        Expected::Refusal { kind, .. } => note_kind(format!("refused: {kind}")),
    }
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
