//! The manager's naive model, and scripts of operations that a manager and the model run side by side.
//!
//! `sequences` has the rules of the specification on plain vectors, and `rows` what a row's bytes are. A [`script`]'s
//! operations are drawn from [`Unstructured`](kvcache_conformance::random::Unstructured): a seed, or a fuzzer's bytes. A
//! [`run::Run`] does each on both, refusals included, and compares all that the specification's section on tests names.

pub mod check;
pub mod copies;
pub mod memory;
pub mod outputs;
pub mod refusals;
pub mod rows;
pub mod run;
pub mod script;
pub mod sequences;
pub mod sessions;
pub mod step;
pub mod store;
pub mod types;
