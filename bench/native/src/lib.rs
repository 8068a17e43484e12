//! What the benchmark measures without Python in the way: an extension module.
//!
//! Python holds all clocks and all memory. What it measures is a method here that runs once, or as often as it is told.

mod blocks;
mod calls;
mod multiply_adds;
mod products;
mod roofline;
mod steps;

use std::fmt::Display;

use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyErr, pymodule};

/// The benchmark's native side.
#[pymodule]
mod kvcache_bench {
    #[pymodule_export]
    use super::blocks::Blocks;
    #[pymodule_export]
    use super::calls::{Call, kernel};
    #[pymodule_export]
    use super::multiply_adds::MultiplyAdds;
    #[pymodule_export]
    use super::products::{Multiply, Peak, instruction_sets, pack};
    #[pymodule_export]
    use super::roofline::Roofline;
    #[pymodule_export]
    use super::steps::Steps;
}

/// Python's exception for whatever cannot be done.
fn refused(reason: impl Display) -> PyErr {
    PyRuntimeError::new_err(reason.to_string())
}
