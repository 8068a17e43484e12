//! The conformance suites on a callable of Python: `kvcache_ops.conformance` gives it arrays and takes what it returns,
//! and everything is compared here.

mod call;
mod implementation;
mod run;

pub use run::run_suite;
