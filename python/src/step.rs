//! `Step`: an open step and its tensors.

use std::sync::{Arc, Mutex, PoisonError};

use half::f16;
use kvcache_manager as core;
use kvcache_manager::{MaskSpec, MaskWindow};
use numpy::ndarray::{Ix0, Ix1, IxDyn};
use numpy::{PyArray0, PyArray1, PyArrayDyn};
use pyo3::prelude::*;

use crate::buffers::{Buffer, Pool, array};
use crate::mask;
use crate::refusal::Result;
use crate::shared_manager::{OpenStep, Parts, SharedManager};

/// Tensors of numbers in one buffer.
#[derive(Debug)]
pub struct Indices<const N: usize> {
    buffer: Arc<Buffer>,
    /// The end of each tensor in the buffer.
    ends: [usize; N],
}

impl<const N: usize> Indices<N> {
    /// Copies of these tensors.
    pub fn copy(pool: &Pool, tensors: [&[i64]; N]) -> Result<Self, core::Error> {
        let mut ends = [0; N];
        let len = tensors.iter().map(|tensor| tensor.len()).sum();
        let buffer = pool.take(len, |numbers| {
            numbers.clear();
            for (end, tensor) in ends.iter_mut().zip(tensors) {
                numbers.extend_from_slice(tensor);
                *end = numbers.len();
            }
            Ok(())
        })?;
        Ok(Self { buffer, ends })
    }

    pub fn vector<'py>(&self, py: Python<'py>, tensor: usize) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let at = if tensor == 0 { 0 } else { self.ends[tensor - 1] };
        array(py, &self.buffer, at, Ix1(self.ends[tensor] - at))
    }

    pub fn scalar<'py>(&self, py: Python<'py>, tensor: usize) -> PyResult<Bound<'py, PyArray0<i64>>> {
        array(py, &self.buffer, self.ends[tensor] - 1, Ix0())
    }
}

/// Getters of a step's tensors: the number of each in `indices`.
macro_rules! tensors {
    ($step:ty { $($(#[$doc:meta])* $name:ident: $read:ident $array:ident $tensor:literal;)* }) => {
        #[pymethods]
        impl $step {
            $(
                $(#[$doc])*
                #[getter]
                fn $name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, $array<i64>>> {
                    self.indices.$read(py, $tensor)
                }
            )*
        }
    };
}

/// The tensors that steps of a `Manager` and of an `InfLlm` have, and both as context managers, by `end_open`.
macro_rules! common_step {
    ($step:ty) => {
        $crate::step::tensors! {
            $step {
                /// Shape (B + 1): where the new rows of each entry begin.
                seqstarts: vector PyArray1 0;
                /// Shape (B + 1): where the rows of each entry begin in the operator's outputs.
                kvstarts: vector PyArray1 1;
                /// Shape (B): the rows that each entry has already; of an `InfLlm`, those that it sees.
                start_pos: vector PyArray1 2;
                /// Shape (s): the positions of the new rows.
                positions: vector PyArray1 3;
                /// Shape (B): by entry, the index of its append. Entries of one new row come first, else in order.
                order: vector PyArray1 4;
                /// Shape (): the most new rows of an entry.
                max_seqlen: scalar PyArray0 5;
                /// Shape (): the most rows of an entry.
                max_kvlen: scalar PyArray0 6;
                /// Shape (): the entries of one new row, which come first.
                decoding_batches: scalar PyArray0 7;
            }
        }

        $crate::step::context_manager!($step);
    };
}

/// A step as a context manager, by `end_open`.
macro_rules! context_manager {
    ($step:ty) => {
        #[pymethods]
        impl $step {
            fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
                slf
            }

            /// Ends a step that is still open.
            #[pyo3(signature = (exc_type, exc_value, traceback, /))]
            fn __exit__(
                &self,
                py: Python<'_>,
                exc_type: Option<&Bound<'_, ::pyo3::types::PyType>>,
                exc_value: Option<&Bound<'_, PyAny>>,
                traceback: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<()> {
                let _ = (exc_value, traceback);
                Ok(self.end_open(py, exc_type.is_none())?)
            }
        }
    };
}

pub(crate) use {common_step, context_manager, tensors};

/// An open step: the inputs of the operator and of the model, as int64 arrays in row-major order, for B batch entries
/// with s new rows and k rows in all.
///
/// As a context manager it commits at the end, and rolls back on an exception. A step that is dropped while it is open
/// is rolled back. While it is open the manager refuses every change: ManagerError of kind step_open.
///
/// An array is valid for as long as it is kept, and never changes: later steps take its memory only when no array and
/// no view is left on it. `key_positions` and `mask` are made when they are asked for, while the step is open.
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct Step {
    open: OpenStep<core::Manager, Parts>,
    indices: Indices<10>,
    cachestarts: Arc<Buffer>,
    cachestarts_shape: Vec<usize>,
    /// `kvstarts[B]`.
    rows: usize,
    key_positions: Mutex<Option<Arc<Buffer>>>,
}

impl Step {
    /// The manager's open step and its tensors, copied out of the manager.
    pub fn new(shared: &Arc<SharedManager>, step: &core::Step<'_>) -> Result<Self, core::Error> {
        let pools = &shared.parts.pools;
        let starts = step.cachestarts();
        let cachestarts = pools.cachestarts.take(starts.len(), |numbers| {
            numbers.clear();
            numbers.extend_from_slice(starts.as_slice().unwrap_or_else(|| unreachable!("in row-major order")));
            Ok(())
        })?;
        let indices = [
            step.seqstarts(),
            step.kvstarts(),
            step.start_pos(),
            step.positions(),
            step.order(),
            &[step.max_seqlen()],
            &[step.max_kvlen()],
            &[step.decoding_batches()],
            step.token_ids(),
            step.cached(),
        ];
        Ok(Self {
            indices: Indices::copy(&pools.indices, indices)?,
            cachestarts,
            cachestarts_shape: starts.shape().to_vec(),
            rows: step.kvstarts().last().map_or(0, |&rows| rows as usize),
            key_positions: Mutex::new(None),
            open: OpenStep::new(shared),
        })
    }

    fn end_open(&self, py: Python<'_>, commit: bool) -> Result<()> {
        self.open.end_open(py, |step| if commit { step.commit() } else { step.rollback() }).map(drop)
    }
}

common_step!(Step);

tensors! {
    Step {
        /// Shape (s): the tokens to compute; -1 where they are not known.
        token_ids: vector PyArray1 8;
        /// Shape (B): by entry, the rows of its append that were found in the prefix index, and are not new rows.
        cached: vector PyArray1 9;
    }
}

#[pymethods]
impl Step {
    /// Slots. Mode "paged": shape (B, pages), the first slot of each page, -1 after the last page; else shape (B).
    #[getter]
    fn cachestarts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDyn<i64>>> {
        array(py, &self.cachestarts, 0, IxDyn(&self.cachestarts_shape))
    }

    /// Shape (k): the positions of all rows, in the order of the operator's outputs; -1 for an empty cell.
    ///
    /// Raises ManagerError of kind step_closed, if it was not read while the step was open.
    #[getter]
    fn key_positions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let made = self.key_positions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let made = match made {
            Some(made) => made,
            None => {
                let made = self.open.with(py, |step| {
                    let made = self.open.shared.parts.pools.key_positions.take(self.rows, |positions| {
                        step.key_positions_into(positions);
                        Ok(())
                    });
                    step.detach();
                    Ok(made?)
                })?;
                *self.key_positions.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&made));
                made
            }
        };
        array(py, &made, 0, Ix1(self.rows))
    }

    /// The attention mask, for keys in the order of the operator's outputs: 0 where a new row sees a key, else -inf.
    ///
    /// Shape (s, k); in mode "cells", over the keys of the second entry, (s rounded up to 32, n_kv). Rows of padding
    /// are -inf: ignore what attention makes of them. dtype: "float32" or "float16", or numpy's. window: the last
    /// positions that a row sees, its own included, beside the first `sink` rows; "spec" is the CacheSpec's, None
    /// sees all. alibi: slopes, one per head; the mask then has shape (len(alibi), rows, columns), and is
    /// -abs(pos_q - pos_k) * slope where a key is seen.
    ///
    /// Raises ManagerError for numbers out of range, and of kind step_closed.
    #[pyo3(
        signature = (dtype=None, window=MaskWindow::Spec, alibi=None),
        text_signature = "($self, dtype='float32', window='spec', alibi=None)"
    )]
    fn mask<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = mask::window)] window: MaskWindow,
        alibi: Option<Vec<f32>>,
    ) -> Result<Bound<'py, PyAny>> {
        let half = mask::is_float16(py, dtype)?;
        mask::check_slopes(alibi.as_deref())?;
        let spec = MaskSpec { window, slopes: alibi.as_deref(), ..MaskSpec::default() };
        let (buffer, shape) = self.open.with(py, |step| {
            let shape = step.mask_shape(&spec);
            let fill = if half { mask::fill::<f16> } else { mask::fill::<f32> };
            let made = fill(&step, &spec, &shape, &self.open.shared.parts.pools.masks);
            step.detach();
            Ok((made?, shape))
        })?;
        let shape = if alibi.is_some() { &shape[..] } else { &shape[1..] };
        Ok(if half {
            array::<f16, _>(py, &buffer, 0, IxDyn(shape))?.into_any()
        } else {
            array::<f32, _>(py, &buffer, 0, IxDyn(shape))?.into_any()
        })
    }

    /// Ends the step: its rows are stored.
    ///
    /// Raises ManagerError of kind step_closed, if it has ended.
    fn commit(&self, py: Python<'_>) -> Result<()> {
        self.open.end(py, |step| step.commit())
    }

    /// Ends the step as if it had never begun.
    ///
    /// Raises ManagerError of kind step_closed, if it has ended.
    fn rollback(&self, py: Python<'_>) -> Result<()> {
        self.open.end(py, |step| step.rollback())
    }
}
