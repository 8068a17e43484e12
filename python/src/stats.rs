//! How full a cache is, and what moves in it, as Python has them.

use kvcache_manager::{RowCopy, Stats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A dict of these fields of a struct.
macro_rules! dict {
    ($py:expr, $of:expr; $($field:ident),*) => {{
        let dict = pyo3::types::PyDict::new($py);
        $(dict.set_item(stringify!($field), $of.$field)?;)*
        dict
    }};
}
pub(crate) use dict;

/// The figures by name.
pub(crate) fn as_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    Ok(dict!(py, stats; slots, used, free, cached, shared, largest_free_run, fragmentation, head, n_kv, sequences,
        swapped, prefix_hits))
}

/// Copies as (src, dst, len), in slots.
pub(crate) fn moves(copies: Vec<RowCopy>) -> Vec<(usize, usize, usize)> {
    copies.into_iter().map(|RowCopy { src, dst, len }| (src, dst, len)).collect()
}
