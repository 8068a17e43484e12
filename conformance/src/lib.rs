//! The conformance suites of the operators `KeyValueCache`, of dynamic and of static batching, `MultiHeadAttention` and
//! `MultiHeadCacheAttention`.
//!
//! A [`Case`] is a folder of two files: `case.yaml` (attributes, types, what each call must do) and
//! `tensors.safetensors` (the state before, and for each call its inputs, outputs and the state after). The values come
//! from an oracle in plain numpy (`golden/oracle`, run by `generate.py`) that shares no code with any kernel. With the
//! feature `embedded` the cases are in the library, which then needs no folder of them. [`random`] makes others, whose
//! values are the reference kernel's and whose refusals come from [`legal`].
//!
//! To test an implementation, implement [`Implementation`] and [`run`] it:
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
//!             cache: case.cache.clone(),
//!             scale: case.scale.clone(),
//!         };
//!         Ok(case.steps.iter().map(refuse).collect())
//!     }
//! }
//!
//! let report = run(&Nothing);
//! assert!(report.failed() > 100);
//! ```

pub mod backends;
mod case;
mod compare;
mod files;
mod implementation;
mod legal;
mod location;
mod only;
pub mod random;
mod read;
mod report;
mod rules;
mod run;
mod schema;
mod tensor;

pub use case::{AttributeValues, Call, Case, Expected, FloatValues, Operator, Step, Suite, Tensors};
pub use compare::Difference;
pub use files::{files, read_results};
pub use implementation::{CallResult, Implementation, Outcome};
pub use legal::{ATTENTION_KINDS, KINDS, Kinds, legal};
pub use only::{Only, OnlyError};
pub use read::{ReadError, cases, read_cases};
pub use report::{Counts, Entry, Flaw, JSON_VERSION, Report, RuleCount, Verdict};
pub use rules::{Rule, rule, rules};
pub use run::{Runner, run, run_cases};
pub use schema::{all_schemas, schemas};
pub use tensor::{Tensor, Value};

/// The book's chapter for implementers, so that its example runs.
#[cfg(doctest)]
#[doc = include_str!("../../docs/conformance.md")]
struct Guide;
