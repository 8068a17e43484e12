//! Names the known mistake that a wrong result comes from: the one that gives the same result, bit for bit.
//!
//! A case that failed is run on the oracle with each known [mistake](crate::mistakes). One explains the result if it
//! predicts every call of the case as the implementation made it: outputs, refusals, cache and scale. A wrong result
//! that no mistake gives stays undiagnosed, and a right one is never accused, because a mistake that does in a case
//! what the specification says explains nothing there.
//!
//! The output of attention has a tolerance: a mistake explains one that is within the tolerance of what the mistake
//! gives, if that differs by more than the case's tolerance from what is right. The state is compared bit for bit there,
//! too. [`Diagnosable`] is what a suite tells of its cases.
//!
//! Some flaws, as rounding at random, give what no oracle can predict. Results that are so near to the right ones that
//! only a rounding can be otherwise are told as that, [`Near`], where no mistake explains them.
//!
//! [`diagnose`] looks at one case. A run of many tells more: [`KnownMistakes::diagnose_run`] names the mistakes that
//! explain most of the failures, and weighs in which of the cases that passed they would have been wrong. [`Recorder`]
//! stands between an implementation and whatever runs cases on it, and diagnoses the report in the end.

mod attention;
mod candidate;
mod diagnosable;
mod fingerprint;
mod known;
mod near;
mod recorder;
mod refusals;
mod run;
mod scope;

pub use diagnosable::{Diagnosable, MadeCall, Predict};
pub use known::{Diagnosis, KnownMistakes, Trial, diagnose};
pub use near::Near;
pub use recorder::Recorder;
pub use refusals::Refusal;
pub use run::{Explanation, RunDiagnosis};
pub use scope::Scope;
