//! `n_kv`, `find_slot`, `self_extend_positions`, `infllm_partition` and `slot_stable`: pure functions, for tests and
//! teaching.

use kvcache_manager as core;
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::arguments::Number;
use crate::refusal::Result;

/// The cells that a step reads: `used_max` (the last used cell + 1) rounded up to a multiple of `pad`, at least `pad`,
/// at most `size`.
///
/// >>> n_kv(33, 1024, 32)
/// 64
#[pyfunction]
pub fn n_kv(used_max: Number, size: Number, pad: Number) -> Result<usize> {
    Ok(core::n_kv(used_max.count("used_max")?, size.count("size")?, pad.count("pad")?))
}

/// Searches `n` neighboring free cells, from `head` on and then from 0 on, where `used` cells are busy; if `head` is
/// past used + 2 * n, from 0 at once.
///
/// `busy` is an array of bool or any iterable of truth values, by cell. Returns the first cell found and the new head:
/// this cell, or (None, head) where there are no such cells.
///
/// >>> find_slot([True, True, False, False, True, False, False, False], head=6, used=3, n=3)
/// (5, 5)
#[pyfunction]
pub fn find_slot(busy: &Bound<'_, PyAny>, head: Number, used: Number, n: Number) -> Result<(Option<usize>, usize)> {
    let (head, used, n) = (head.count("head")?, used.count("used")?, n.count("n")?);
    let cells = busy.try_iter()?.map(|cell| cell?.is_truthy()).collect::<PyResult<Vec<_>>>()?;
    Ok(core::find_slot(&cells, head, used, n))
}

/// The positions of `n` tokens that were appended one by one, each after `Manager.self_extend`, as int64 of shape (n);
/// the position of the next; and the first one that is not grouped.
///
/// >>> self_extend_positions(5, 2, 4)
/// (array([0, 0, 1, 1, 2]), 3, 2)
///
/// Raises ManagerError: range, group_width, out_of_memory.
#[pyfunction]
pub fn self_extend_positions(
    py: Python<'_>,
    n: Number,
    ga_n: Number,
    ga_w: Number,
) -> Result<(Bound<'_, PyArray1<i64>>, i64, i64)> {
    let (positions, n_past, ga_i) = core::self_extend_positions(n.count("n")?, ga_n.any("ga_n")?, ga_w.any("ga_w")?)?;
    Ok((positions.into_pyarray(py), n_past, ga_i))
}

/// How `n` tokens are divided: the first ones, at most `n_init`; whole blocks; and the rest, which is `n_local` tokens
/// or more where there are any before it.
///
/// >>> infllm_partition(11, 2, 4, 2)
/// (2, 2, 5)
///
/// Raises ManagerError: range.
#[pyfunction]
pub fn infllm_partition(n: Number, n_init: Number, n_local: Number, block: Number) -> Result<(usize, usize, usize)> {
    let (n, n_init, n_local) = (n.count("n")?, n_init.count("n_init")?, n_local.count("n_local")?);
    let parts = core::infllm_partition(n, n_init, n_local, block.count("block")?)?;
    Ok((parts.init, parts.blocks, parts.rest))
}

/// Where blocks go in a table: wanted ones of `last` keep their slots, and the others take the slots of the ones
/// that are not. Returns the table, and the slots that have to be loaded.
///
/// >>> slot_stable([7, 3, 9, 5], [9, 7, 2, 4])
/// ([7, 2, 9, 4], [1, 3])
///
/// Raises ManagerError: duplicate_block.
#[pyfunction]
pub fn slot_stable(last: Vec<u32>, want: Vec<u32>) -> Result<(Vec<u32>, Vec<usize>)> {
    Ok(core::slot_stable(&last, &want)?)
}
