//! The conformance suite of `dynamic_batching.KeyValueCache`; in [`attention`], of the operators that attend over its
//! keys and values; in [`static_batching`], of the `KeyValueCache` of static batching.
//!
//! A [`Case`] is a folder of two files: `case.yaml` (attributes, types, what each call must do) and
//! `tensors.safetensors` (the state before, and for each call its inputs, outputs and the state after). The values come
//! from an oracle in plain numpy (`oracle/`, run by `generate.py`) that shares no code with any kernel. With the feature
//! `embedded` the cases are in the library, which then needs no folder of them.
//!
//! To test an implementation, implement [`Implementation`] (from another language: write a program that `Program` (feature
//! `program`) can call) and [`run`] the [`cases`] on it:
//!
//! ```
//! use kvcache_conformance::{CallResult, Case, Implementation, Outcome, run};
//!
//! /// An implementation that refuses everything.
//! struct Nothing;
//!
//! impl Implementation for Nothing {
//!     fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
//!         let refuse = |_| CallResult {
//!             outcome: Outcome::refused("everything is refused"),
//!             cache: Some(case.cache.clone()),
//!             scale: case.scale.clone(),
//!         };
//!         Ok(case.steps.iter().map(refuse).collect())
//!     }
//! }
//!
//! # fn main() -> Result<(), kvcache_conformance::ReadError> {
//! let report = run(&Nothing, &kvcache_conformance::cases()?);
//! assert!(report.failed() > 100);
//! # Ok(())
//! # }
//! ```

pub mod attention;
#[cfg(feature = "backends")]
pub mod backends;
mod case;
pub mod diagnosis;
mod difference;
#[cfg(feature = "embedded")]
mod embedded;
mod files;
mod floats;
pub mod mistakes;
pub mod oracle;
mod profile;
#[cfg(feature = "program")]
mod program;
pub mod random;
mod read;
mod report;
mod rules;
mod run;
pub mod static_batching;
mod suite;
mod tensor;

pub use case::{After, Case, Expected, NamedInputs, NanRule, Step, StepInputs, Types};
pub use difference::{
    CacheLocation, Difference, Differing, Elements, Form, Inner, Location, Mismatch, OutputLocation, Owner, Part, Slot,
    Value,
};
pub use files::ReadError;
pub use profile::{Profile, ProfileError, Standing};
#[cfg(feature = "program")]
pub use program::{Program, ProgramError};
pub use read::{CaseInputs, cases, read_cases};
pub use report::{Counts, Entry, JSON_VERSION, Report, RuleCount, Verdict};
pub use rules::{OperatorPage, Rule, rule, rules};
pub use run::{CallResult, Demand, Implementation, Outcome, Runner, run};
pub use suite::{Diagnosis, Features, Named, State, Suite};
pub use tensor::Tensor;

/// The book's chapter for implementers, so that its example runs.
#[cfg(doctest)]
#[doc = include_str!("../../docs/conformance.md")]
struct Guide;
