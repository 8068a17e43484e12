//! `InfLlmStep`: an open step of an `InfLlm` and its tensors.

use std::sync::Arc;

use kvcache_manager as core;
use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray0, PyArray1, PyArray2, ToPyArray};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::infllm::SharedInfLlm;
use crate::memory::HostMemory;
use crate::numbers::count;
use crate::refusal::Refusal;

/// An open step of an `InfLlm`: the inputs of the operator and of the model, as int64 arrays, for B batch entries with
/// s new rows and k rows in all.
///
/// As a context manager it commits at the end, and rolls back on an exception. A step that is dropped while it is open
/// is rolled back. While it is open every change but `observe` is refused.
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct InfLlmStep {
    shared: Arc<SharedInfLlm>,
    number: u64,
    memory: Py<HostMemory>,
    seqstarts: Vec<i64>,
    kvstarts: Vec<i64>,
    start_pos: Vec<i64>,
    positions: Vec<i64>,
    order: Vec<i64>,
    /// max_seqlen, max_kvlen, decoding_batches.
    scalars: [i64; 3],
    /// By layer.
    layers: Vec<Layer>,
    loads: usize,
}

#[derive(Debug)]
struct Layer {
    cachestarts: Array2<i64>,
    key_positions: Vec<i64>,
}

pub fn closed() -> Refusal {
    let message = "the step is no longer open: it was committed or rolled back".to_owned();
    Refusal::new("step_closed", message, Vec::new())
}

impl Drop for InfLlmStep {
    fn drop(&mut self) {
        self.shared.abandon(self.number);
    }
}

impl InfLlmStep {
    /// The tensors of the open step.
    pub fn new(shared: Arc<SharedInfLlm>, number: u64, memory: Py<HostMemory>, step: &core::InfLlmStep<'_>) -> Self {
        let layer = |layer| {
            let mut key_positions = Vec::new();
            step.key_positions_into(layer, &mut key_positions).ok()?;
            Some(Layer { cachestarts: step.cachestarts(layer).ok()?.to_owned(), key_positions })
        };
        Self {
            shared,
            number,
            memory,
            seqstarts: step.seqstarts().to_vec(),
            kvstarts: step.kvstarts().to_vec(),
            start_pos: step.start_pos().to_vec(),
            positions: step.positions().to_vec(),
            order: step.order().to_vec(),
            scalars: [step.max_seqlen(), step.max_kvlen(), step.decoding_batches()],
            layers: (0..).map_while(layer).collect(),
            loads: step.loads(),
        }
    }

    fn layer(&self, layer: Option<&Bound<'_, PyAny>>) -> PyResult<&Layer> {
        let layer = layer.map_or(Ok(0), |layer| count("range", "layer", layer))?;
        let num_layer = self.layers.len();
        let unknown = || core::Error::from(core::InfLlmError::Layer { layer, num_layer });
        Ok(self.layers.get(layer).ok_or_else(|| Refusal::from(unknown()))?)
    }

    fn end(&self, py: Python<'_>, commit: bool) -> PyResult<()> {
        if !commit {
            return self.shared.with(py, |infllm| {
                self.shared.step(infllm, self.number).ok_or_else(closed)?.rollback();
                Ok(())
            });
        }
        self.shared.with_memory(py, self.memory.bind(py), |infllm, memory| {
            Ok(self.shared.step(infllm, self.number).ok_or_else(closed)?.commit(memory)?)
        })
    }
}

#[pymethods]
impl InfLlmStep {
    /// Shape (B + 1): where the new rows of each entry begin.
    #[getter]
    fn seqstarts<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.seqstarts.to_pyarray(py)
    }

    /// Shape (B + 1): where the rows of each entry begin in the operator's outputs.
    #[getter]
    fn kvstarts<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.kvstarts.to_pyarray(py)
    }

    /// Shape (B): the rows that each entry sees already.
    #[getter]
    fn start_pos<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.start_pos.to_pyarray(py)
    }

    /// Shape (): the most new rows of an entry.
    #[getter]
    fn max_seqlen<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray0<i64>> {
        PyArray0::from_owned_array(py, numpy::ndarray::arr0(self.scalars[0]))
    }

    /// Shape (): the most rows of an entry.
    #[getter]
    fn max_kvlen<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray0<i64>> {
        PyArray0::from_owned_array(py, numpy::ndarray::arr0(self.scalars[1]))
    }

    /// Shape (): the entries of one new row, which come first.
    #[getter]
    fn decoding_batches<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray0<i64>> {
        PyArray0::from_owned_array(py, numpy::ndarray::arr0(self.scalars[2]))
    }

    /// Shape (s): the positions of the new rows.
    #[getter]
    fn positions<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.positions.to_pyarray(py)
    }

    /// Shape (B): by entry, the index of its append. Entries of one new row come first, else in order.
    #[getter]
    fn order<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.order.to_pyarray(py)
    }

    /// The blocks that were loaded for this step.
    #[getter]
    fn loads(&self) -> usize {
        self.loads
    }

    /// Shape (B, pages): the first slot of each page of a layer, -1 behind the last page.
    ///
    /// Raises ManagerError: layer.
    #[pyo3(signature = (layer=None), text_signature = "($self, layer=0)")]
    fn cachestarts<'py>(
        &self,
        py: Python<'py>,
        layer: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray2<i64>>> {
        Ok(self.layer(layer)?.cachestarts.to_pyarray(py))
    }

    /// Shape (k): the positions of all rows of a layer, in the order of the operator's outputs.
    ///
    /// Raises ManagerError: layer.
    #[pyo3(signature = (layer=None), text_signature = "($self, layer=0)")]
    fn key_positions<'py>(
        &self,
        py: Python<'py>,
        layer: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        Ok(self.layer(layer)?.key_positions.clone().into_pyarray(py))
    }

    /// Ends the step: its rows are stored, and those that have left the last tokens become blocks.
    ///
    /// Raises ManagerError: not_observed, store, memory (the step is rolled back then); step_closed, if it has ended.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, true)
    }

    /// Ends the step: its sequences have the tokens and blocks that they had.
    ///
    /// Raises ManagerError of kind step_closed, if it has ended.
    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, false)
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
        let open = self
            .shared
            .with(py, |infllm| Ok(self.shared.step(infllm, self.number).map(core::InfLlmStep::detach).is_some()))?;
        if open { self.end(py, exc_type.is_none()) } else { Ok(()) }
    }
}
