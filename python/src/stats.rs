//! How full a cache is, and what moves in it, as Python has them.

use kvcache_manager::{RowCopy, Stats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The figures by name.
pub(crate) fn as_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("slots", stats.slots)?;
    dict.set_item("used", stats.used)?;
    dict.set_item("free", stats.free)?;
    dict.set_item("cached", stats.cached)?;
    dict.set_item("shared", stats.shared)?;
    dict.set_item("largest_free_run", stats.largest_free_run)?;
    dict.set_item("fragmentation", stats.fragmentation)?;
    dict.set_item("head", stats.head)?;
    dict.set_item("n_kv", stats.n_kv)?;
    dict.set_item("sequences", stats.sequences)?;
    dict.set_item("swapped", stats.swapped)?;
    dict.set_item("prefix_hits", stats.prefix_hits)?;
    Ok(dict)
}

/// Copies as (src, dst, len), in slots.
pub(crate) fn moves(copies: Vec<RowCopy>) -> Vec<(usize, usize, usize)> {
    copies.into_iter().map(|RowCopy { src, dst, len }| (src, dst, len)).collect()
}
