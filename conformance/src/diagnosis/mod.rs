//! Names the known mistake that wrong results come from: the one that gives the same results, bit for bit.
//!
//! A case that failed is run on the oracle with each known [mistake](crate::mistakes). One explains the results if it
//! predicts every call of the case as the implementation made it: outputs, refusals, cache and scale. A right result is
//! never accused, because a mistake that does in a case what the specification says explains nothing there. The output
//! of attention has a tolerance: a mistake explains one that is within the tolerance of what the mistake gives, if that
//! differs by more than the case's tolerance from what is right.
//!
//! [`Recorder`] stands between an implementation and whatever runs cases on it, and diagnoses the report in the end. A
//! line of the diagnosis is one of these, as [`RunDiagnosis`] writes them:
//!
//! - "12 of 20 failures are what half-away-from-even gives: ... Only where T2 is int4." A known mistake, and the part of
//!   the implementation in which it is made, where passed cases contradict it elsewhere.
//! - "... are what state-changed-before-refusal gives: ...": calls that are refused after bytes were written.
//! - "... are of legal calls that were refused, saying "quant_group > 16". Only where quant_group is at least 32." Why a
//!   call is refused is not guessed: that is what the implementation says, and what those calls have in common.
//! - "... are of illegal calls that were made: expected cache_range (3), kvlen_mismatch (2)".
//! - "... are what no known mistake gives. Only where cache_heads is at least 12."
//!
//! A condition is given only if it separates the failures from the passed cases and is too rare for a coincidence.

mod candidate;
mod explanation;
mod run;
mod scope;
mod stored;

pub use candidate::{Diagnosable, Outputs};
pub use explanation::{Explanation, Group, RunDiagnosis};
pub use run::{KnownMistakes, Trial};
pub use scope::{Facts, Recorder, Scope};
