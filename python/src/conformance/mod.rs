//! The conformance suites on a callable of Python: `kvcache_ops.conformance` gives it arrays and takes what it returns,
//! and everything is compared here.

mod call;
mod implementation;
mod run;

pub use run::{conformance_cases, error_kinds, run_suites};
