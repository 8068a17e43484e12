//! What the benchmark measures without Python in the way: an extension module, and in the same file a library of
//! operators that do nothing.
//!
//! A call of an operator is made once, in memory of Python's, so that every contender works on the same pages. It is
//! measured phase by phase on a [`Team`](team::Team) of threads whose share of the processors is watched, beside the
//! loops that it is held against. The manager's steps need no tensors but their own.

mod direct;
mod empty;
mod limit;
mod manager;
mod team;
mod tiers;

use std::fmt::Display;

use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyErr, pymodule};

pub use empty::RegisterCustomOps;

/// The benchmark's native side.
#[pymodule]
mod kvcache_bench {
    #[pymodule_export]
    use super::direct::{AttentionCall, CacheCall};
    #[pymodule_export]
    use super::limit::limit;
    #[pymodule_export]
    use super::manager::Steps;
    #[pymodule_export]
    use super::team::Team;
    #[pymodule_export]
    use super::tiers::{Blocks, Swaps};
}

/// Python's exception for whatever cannot be done.
fn refused(reason: impl Display) -> PyErr {
    PyRuntimeError::new_err(reason.to_string())
}
