//! Packed int4, as caches hold it.

use kvcache_op::kernels::quantize::{nibble, with_nibble};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::refusal::Refusal;

/// The bytes of int4 values, of which there is an even number, between -8 and 7.
#[pyfunction]
pub fn pack_int4<'py>(py: Python<'py>, values: PyReadonlyArray1<'py, i8>) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let values = values.as_array();
    if let Some((i, value)) = values.iter().enumerate().find(|(_, value)| !(-8..=7).contains(*value)) {
        let message = format!("value {value} (element {i}) is no int4, expected -8 to 7");
        return Err(Refusal::new("int4_range", message).into());
    }
    let pairs = values.len() / 2;
    let byte = |pair: usize| (0..2).fold(0, |byte, i| with_nibble(byte, i, values[2 * pair + i]));
    Ok((0..pairs).map(byte).collect::<Vec<_>>().into_pyarray(py))
}

/// The int4 values of packed bytes.
#[pyfunction]
pub fn unpack_int4<'py>(py: Python<'py>, packed: PyReadonlyArray1<'py, u8>) -> Bound<'py, PyArray1<i8>> {
    let packed = packed.as_array();
    let values = packed.iter().flat_map(|&byte| [nibble(byte, 0), nibble(byte, 1)]);
    values.collect::<Vec<_>>().into_pyarray(py)
}
