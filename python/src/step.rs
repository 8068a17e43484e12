//! `Step`: an open step and its tensors.

use std::sync::{Arc, Mutex, PoisonError};

use half::f16;
use kvcache_manager as core;
use kvcache_manager::{MaskSpec, MaskWindow};
use numpy::ndarray::{Ix0, Ix1, IxDyn};
use numpy::{PyArray0, PyArray1, PyArrayDyn};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::buffers::{Buffer, array};
use crate::mask;

use crate::refusal::Refusal;
use crate::shared::{Pools, Shared};

/// An array in the buffer of a step's index tensors.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    at: usize,
    len: usize,
}

/// The index tensors of a step, copied out of the manager.
#[derive(Debug)]
pub struct Tensors {
    indices: Arc<Buffer>,
    seqstarts: Span,
    kvstarts: Span,
    start_pos: Span,
    positions: Span,
    token_ids: Span,
    cached: Span,
    order: Span,
    max_seqlen: Span,
    max_kvlen: Span,
    decoding_batches: Span,
    cachestarts: Arc<Buffer>,
    cachestarts_shape: Vec<usize>,
    /// `kvstarts[B]`.
    rows: usize,
}

impl Tensors {
    /// The tensors of a step.
    ///
    /// # Errors
    /// [`core::Error::OutOfMemory`].
    pub fn copy(step: &core::Step<'_>, pools: &Pools) -> Result<Self, core::Error> {
        let scalars = [step.max_seqlen(), step.max_kvlen(), step.decoding_batches()];
        let tensors = [
            step.seqstarts(),
            step.kvstarts(),
            step.start_pos(),
            step.positions(),
            step.token_ids(),
            step.cached(),
            step.order(),
            &scalars[0..1],
            &scalars[1..2],
            &scalars[2..3],
        ];
        let mut spans = [Span::default(); 10];
        let len = tensors.iter().map(|tensor| tensor.len()).sum();
        let indices = pools.indices.take(len, |numbers| {
            numbers.clear();
            for (span, tensor) in spans.iter_mut().zip(tensors) {
                *span = Span { at: numbers.len(), len: tensor.len() };
                numbers.extend_from_slice(tensor);
            }
            Ok(())
        })?;
        let [seqstarts, kvstarts, start_pos, positions, token_ids, cached, order, max_seqlen, max_kvlen, decoding] =
            spans;
        let starts = step.cachestarts();
        let cachestarts = pools.cachestarts.take(starts.len(), |numbers| {
            numbers.clear();
            numbers.extend_from_slice(starts.as_slice().unwrap_or_else(|| unreachable!("in row-major order")));
            Ok(())
        })?;
        Ok(Self {
            indices,
            seqstarts,
            kvstarts,
            start_pos,
            positions,
            token_ids,
            cached,
            order,
            max_seqlen,
            max_kvlen,
            decoding_batches: decoding,
            cachestarts,
            cachestarts_shape: starts.shape().to_vec(),
            rows: step.kvstarts().last().map_or(0, |&rows| rows as usize),
        })
    }
}

/// An open step: the inputs of the operator and of the model, as int64 arrays in row-major order, for B batch entries
/// with s new rows and k rows in all.
///
/// As a context manager it commits at the end, and rolls back on an exception. A step that is dropped while it is open
/// is rolled back. While it is open the manager refuses every change: ManagerError of kind step_open.
///
/// An array is valid for as long as it is kept, and never changes: later steps take its memory only when no array and no
/// view is left on it. `key_positions` and `mask` are made when they are asked for, while the step is open.
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct Step {
    shared: Arc<Shared>,
    number: u64,
    tensors: Tensors,
    key_positions: Mutex<Option<Arc<Buffer>>>,
}

impl Drop for Step {
    fn drop(&mut self) {
        self.shared.abandon(self.number);
    }
}

impl Step {
    /// The manager's open step.
    pub fn new(shared: Arc<Shared>, number: u64, tensors: Tensors) -> Self {
        Self { shared, number, tensors, key_positions: Mutex::new(None) }
    }

    fn vector<'py>(&self, py: Python<'py>, Span { at, len }: Span) -> PyResult<Bound<'py, PyArray1<i64>>> {
        array(py, &self.tensors.indices, at, Ix1(len))
    }

    fn scalar<'py>(&self, py: Python<'py>, span: Span) -> PyResult<Bound<'py, PyArray0<i64>>> {
        array(py, &self.tensors.indices, span.at, Ix0())
    }

    /// Has `use_it` use the open step.
    fn with_open<R>(&self, py: Python<'_>, use_it: impl FnOnce(core::Step<'_>) -> Result<R, Refusal>) -> PyResult<R> {
        self.shared.with(py, |manager| {
            let open = self.shared.is_latest(self.number).then(|| manager.open_step()).flatten();
            use_it(open.ok_or_else(closed)?)
        })
    }
}

fn closed() -> Refusal {
    Refusal::new("step_closed", "the step is no longer open: it was committed or rolled back".to_owned(), Vec::new())
}

#[pymethods]
impl Step {
    /// Shape (B + 1): where the new rows of each entry begin.
    #[getter]
    fn seqstarts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        self.vector(py, self.tensors.seqstarts)
    }

    /// Shape (B + 1): where the rows of each entry begin in the operator's outputs.
    #[getter]
    fn kvstarts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        self.vector(py, self.tensors.kvstarts)
    }

    /// Slots. Mode "paged": shape (B, pages), the first slot of each page, -1 behind the last page; else shape (B).
    #[getter]
    fn cachestarts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDyn<i64>>> {
        array(py, &self.tensors.cachestarts, 0, IxDyn(&self.tensors.cachestarts_shape))
    }

    /// Shape (B): the rows that each entry has already.
    #[getter]
    fn start_pos<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        self.vector(py, self.tensors.start_pos)
    }

    /// Shape (): the most new rows of an entry.
    #[getter]
    fn max_seqlen<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray0<i64>>> {
        self.scalar(py, self.tensors.max_seqlen)
    }

    /// Shape (): the most rows of an entry.
    #[getter]
    fn max_kvlen<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray0<i64>>> {
        self.scalar(py, self.tensors.max_kvlen)
    }

    /// Shape (): the entries of one new row, which come first.
    #[getter]
    fn decoding_batches<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray0<i64>>> {
        self.scalar(py, self.tensors.decoding_batches)
    }

    /// Shape (s): the tokens to compute; -1 where they are not known.
    #[getter]
    fn token_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        self.vector(py, self.tensors.token_ids)
    }

    /// Shape (s): the positions of the new rows.
    #[getter]
    fn positions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        self.vector(py, self.tensors.positions)
    }

    /// Shape (B): by entry, the index of its append. Entries of one new row come first, else in order.
    #[getter]
    fn order<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        self.vector(py, self.tensors.order)
    }

    /// Shape (B): by entry, the rows of its append that were found in the prefix index, and are not new rows.
    #[getter]
    fn cached<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        self.vector(py, self.tensors.cached)
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
                let made = self.with_open(py, |step| {
                    let made = self.shared.pools.key_positions.take(self.tensors.rows, |positions| {
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
        array(py, &made, 0, Ix1(self.tensors.rows))
    }

    /// The attention mask, for keys in the order of the operator's outputs: 0 where a new row sees a key, else -inf.
    ///
    /// Shape (s, k); in mode "cells", over the keys of the second entry, (s rounded up to 32, n_kv). Rows of padding are
    /// -inf: ignore what attention makes of them. dtype: "float32" or "float16", or numpy's. window: the last positions
    /// that a row sees, its own included, beside the first `sink` rows; "spec" is that of the CacheSpec, None sees all.
    /// alibi: slopes, one per head; the mask then has shape (len(alibi), rows, columns), and is
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
    ) -> PyResult<Bound<'py, PyAny>> {
        let half = mask::is_float16(py, dtype)?;
        mask::check_slopes(alibi.as_deref())?;
        let spec = MaskSpec::causal().window(window);
        let spec = alibi.as_deref().map_or(spec, |slopes| spec.alibi(slopes));
        let (buffer, shape) = self.with_open(py, |step| {
            let shape = step.mask_shape(&spec);
            let fill = if half { mask::fill::<f16> } else { mask::fill::<f32> };
            let made = fill(&step, &spec, &shape, &self.shared.pools.masks);
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
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.with_open(py, |step| {
            step.commit();
            Ok(())
        })
    }

    /// Ends the step as if it had never begun.
    ///
    /// Raises ManagerError of kind step_closed, if it has ended.
    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        self.with_open(py, |step| {
            step.rollback();
            Ok(())
        })
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Ends a step that is still open.
    #[pyo3(signature = (exc_type, exc_value, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: Option<&Bound<'_, PyType>>,
        exc_value: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let _ = (exc_value, traceback);
        self.shared.with(py, |manager| {
            match self.shared.is_latest(self.number).then(|| manager.open_step()).flatten() {
                Some(step) if exc_type.is_none() => step.commit(),
                Some(step) => step.rollback(),
                None => {}
            }
            Ok(())
        })
    }
}
