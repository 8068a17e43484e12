//! `StateCache` and `StateStep`: the states of recurrent layers.

use std::sync::Arc;

use kvcache_manager as core;
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList};

use crate::append::counts_of;
use crate::arguments::{Number, positions};
use crate::id::Id;
use crate::refusal::Result;
use crate::shared_manager::{OpenStep, Shared};
use crate::step::context_manager;

type SharedStates = Shared<core::StateCache, ()>;

/// Decides which cells hold the states of which sequences in recurrent layers, as Mamba and RWKV have them: a row a
/// sequence, which every step replaces. Cell i is row i of the caller's memory, (size, row_bytes) of any type.
///
/// Sequences have the ids of the `Manager` of the same model's attention layers, or ids of their own. A fork has the
/// state of the other until one of the two is written. As long as a cell is free for each sequence of a step, states
/// are written into free cells, and a rollback restores them; without, they are written where they are, and a rollback
/// loses them: such a sequence can be freed, or emptied by `seq_rm(s)`.
///
/// Raises ManagerError: spec_range, out_of_memory.
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct StateCache(Arc<SharedStates>);

impl StateCache {
    fn with<R>(&self, py: Python<'_>, used: impl FnOnce(&mut core::StateCache) -> Result<R, core::Error>) -> Result<R> {
        self.0.with(py, |states| Ok(used(states)?))
    }
}

#[pymethods]
impl StateCache {
    #[new]
    fn new(size: Number, row_bytes: Number) -> Result<Self> {
        let states = core::StateCache::new(size.size("size")?, row_bytes.size("row_bytes")?)?;
        Ok(Self(Arc::new(Shared::new(states, ()))))
    }

    /// The cells, which are also the most sequences.
    #[getter]
    fn size(&self, py: Python<'_>) -> Result<usize> {
        self.with(py, |states| Ok(states.size()))
    }

    /// The bytes of all cells.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> Result<usize> {
        self.with(py, |states| Ok(states.nbytes()))
    }

    /// A sequence without tokens; its id: `s`, from a `Manager`, or one that no sequence here has.
    ///
    /// Raises ManagerError: known_seq, step_open; CapacityError: no_slot.
    #[pyo3(signature = (s=None))]
    fn create(&self, py: Python<'_>, s: Option<Id>) -> Result<u64> {
        self.with(py, |states| Ok(Id(states.create(s.map(|s| s.0))?).number()))
    }

    /// A sequence with the state of `s`; its id: `to`, from a `Manager`'s fork, or a new one. No bytes move.
    ///
    /// Raises ManagerError: unknown_seq, lost, known_seq, step_open; CapacityError: no_slot.
    #[pyo3(signature = (s, to=None))]
    fn fork(&self, py: Python<'_>, s: Id, to: Option<Id>) -> Result<u64> {
        self.with(py, |states| Ok(Id(states.fork(s.0, to.map(|to| to.0))?).number()))
    }

    /// Removes a sequence.
    ///
    /// Raises ManagerError: unknown_seq, step_open.
    fn free(&self, py: Python<'_>, s: Id) -> Result<()> {
        self.with(py, |states| states.free(s.0))
    }

    /// The cell with the state of a sequence, or None before its first token.
    ///
    /// Raises ManagerError: unknown_seq, lost.
    fn tail(&self, py: Python<'_>, s: Id) -> Result<Option<usize>> {
        self.with(py, |states| states.tail(s.0))
    }

    /// The position of a sequence's last token, or None before its first token.
    ///
    /// Raises ManagerError: unknown_seq, lost.
    fn pos_max(&self, py: Python<'_>, s: Id) -> Result<Option<i64>> {
        self.with(py, |states| states.pos_max(s.0))
    }

    /// Removes the tokens at positions [p0, p1): all of a state, or nothing. p0 < 0 is 0, p1 < 0 is after the last
    /// position.
    ///
    /// Raises ManagerError: partial_state, unknown_seq, lost, step_open.
    #[pyo3(signature = (s, p0=Number::from(-1), p1=Number::from(-1)), text_signature = "($self, s, p0=-1, p1=-1)")]
    fn seq_rm(&self, py: Python<'_>, s: Id, p0: Number, p1: Number) -> Result<()> {
        let positions = positions(p0, p1)?;
        self.with(py, |states| states.seq_rm(s.0, positions))
    }

    /// Adds `delta` to the position of the last token of `s`, if it is in [p0, p1); below 0 the state is removed.
    ///
    /// Raises ManagerError: position_overflow, unknown_seq, lost, step_open.
    fn seq_add(&self, py: Python<'_>, s: Id, p0: Number, p1: Number, delta: Number) -> Result<()> {
        let (positions, delta) = (positions(p0, p1)?, delta.any("delta")?);
        self.with(py, |states| states.seq_add(s.0, positions, delta))
    }

    /// Divides the position of the last token of `s` by `d`, if it is in [p0, p1), and rounds it down.
    ///
    /// Raises ManagerError: range (d < 1), unknown_seq, lost, step_open.
    fn seq_div(&self, py: Python<'_>, s: Id, p0: Number, p1: Number, d: Number) -> Result<()> {
        let (positions, d) = (positions(p0, p1)?, d.any("d")?);
        self.with(py, |states| states.seq_div(s.0, positions, d))
    }

    /// Opens a step that appends `n` tokens to each sequence of `appends`, a dict {s: n}: all of them or none.
    ///
    /// Raises ManagerError: unknown_seq, lost, empty_append, position_overflow, step_open.
    fn begin_step(&self, appends: &Bound<'_, PyDict>) -> Result<StateStep> {
        let counts = counts_of(appends)?;
        self.with(appends.py(), |states| {
            let step = states.begin_step(&counts)?;
            let splits = step.splits().to_vec();
            step.detach();
            Ok(StateStep { open: OpenStep::new(&self.0), splits })
        })
    }
}

/// A part of a step: its sequences, the tokens of each, and by sequence the cells to read (-1: zeros) and to write.
type Split<'py> = (Vec<u64>, usize, Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>);

/// An open step of a `StateCache`: a sequence of (seqs, n_each, src, dst), to be run one after the other. `seqs` are
/// the sequences that have `n_each` more tokens; `src` and `dst`, int64 of shape (len(seqs)), are the cells that have
/// their states before these, -1 for zeros, and that are given the states after them. A graph reads all `src` before it
/// writes one `dst`.
///
/// As a context manager it commits at the end, and rolls back on an exception. A step that is dropped while it is open
/// is rolled back.
#[pyclass(frozen, sequence, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct StateStep {
    open: OpenStep<core::StateCache, ()>,
    splits: Vec<core::StateSplit>,
}

impl StateStep {
    fn end_open(&self, py: Python<'_>, commit: bool) -> Result<()> {
        self.open.end_open(py, |step| if commit { step.commit() } else { step.rollback() }).map(drop)
    }
}

context_manager!(StateStep);

#[pymethods]
impl StateStep {
    fn __len__(&self) -> usize {
        self.splits.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let splits = (0..self.splits.len()).map(|index| self.__getitem__(py, index));
        PyList::new(py, splits.collect::<PyResult<Vec<_>>>()?)?.try_iter()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Split<'py>> {
        let split = self.splits.get(index);
        let split = split.ok_or_else(|| PyIndexError::new_err(format!("the step has {} parts", self.splits.len())))?;
        let core::StateSplit { seqs, n_each, src, dst } = split.clone();
        let seqs = seqs.into_iter().map(|seq| Id(seq).number()).collect();
        Ok((seqs, n_each, src.into_pyarray(py), dst.into_pyarray(py)))
    }

    /// Ends the step: its sequences have the states that were written.
    ///
    /// Raises ManagerError of kind step_closed, if it has ended.
    fn commit(&self, py: Python<'_>) -> Result<()> {
        self.open.end(py, |step| step.commit())
    }

    /// Ends the step: its sequences have the states that they had, if these were not overwritten.
    ///
    /// Raises ManagerError of kind step_closed, if it has ended.
    fn rollback(&self, py: Python<'_>) -> Result<()> {
        self.open.end(py, |step| step.rollback())
    }
}
