//! `InfLlmStep`: an open step of an `InfLlm` and its tensors.

use std::sync::Arc;

use kvcache_manager as core;
use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray0, PyArray1, PyArray2, ToPyArray};
use pyo3::prelude::*;

use crate::arguments::Number;
use crate::memory::HostMemory;
use crate::refusal::{Refusal, Result};
use crate::shared_manager::{InfLlmParts, OpenStep, SharedInfLlm};
use crate::step::{Indices, common_step};

/// An open step of an `InfLlm`: the inputs of the operator and of the model, as int64 arrays, for B batch entries with
/// s new rows and k rows in all.
///
/// As a context manager it commits at the end, and rolls back on an exception. A step that is dropped while it is open
/// is rolled back. While it is open every change but `observe` is refused.
///
/// An array is valid for as long as it is kept: later steps take its memory only when no array and no view is left on
/// it.
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct InfLlmStep {
    open: OpenStep<core::InfLlm, InfLlmParts>,
    memory: Py<HostMemory>,
    indices: Indices<8>,
    /// By layer.
    layers: Vec<LayerTensors>,
    loads: usize,
}

#[derive(Debug)]
struct LayerTensors {
    cachestarts: Array2<i64>,
    key_positions: Vec<i64>,
}

impl InfLlmStep {
    /// The open step and its tensors.
    pub fn new(shared: &Arc<SharedInfLlm>, memory: Py<HostMemory>, step: &core::InfLlmStep<'_>) -> Result<Self> {
        let layer = |layer| {
            let mut key_positions = Vec::new();
            step.key_positions_into(layer, &mut key_positions).ok()?;
            Some(LayerTensors { cachestarts: step.cachestarts(layer).ok()?.to_owned(), key_positions })
        };
        let indices = [
            step.seqstarts(),
            step.kvstarts(),
            step.start_pos(),
            step.positions(),
            step.order(),
            &[step.max_seqlen()],
            &[step.max_kvlen()],
            &[step.decoding_batches()],
        ];
        Ok(Self {
            indices: Indices::copy(&shared.parts.indices, indices)?,
            memory,
            layers: (0..).map_while(layer).collect(),
            loads: step.loads(),
            open: OpenStep::new(shared),
        })
    }

    fn layer(&self, layer: Number) -> Result<&LayerTensors> {
        let (layer, num_layer) = (layer.count("layer")?, self.layers.len());
        Ok(self.layers.get(layer).ok_or(core::Error::Layer { layer, num_layer })?)
    }

    fn end(&self, py: Python<'_>, commit: bool) -> Result<()> {
        if !commit {
            return self.open.end(py, |step| step.rollback());
        }
        let shared = &self.open.shared;
        shared.with_memory(py, self.memory.bind(py), |infllm, memory| {
            self.open.step(infllm)?.commit(memory).map_err(Refusal::from)
        })
    }

    fn end_open(&self, py: Python<'_>, commit: bool) -> Result<()> {
        if self.open.end_open(py, |step| step.detach())? { self.end(py, commit) } else { Ok(()) }
    }
}

common_step!(InfLlmStep);

#[pymethods]
impl InfLlmStep {
    /// The blocks that were loaded for this step.
    #[getter]
    fn loads(&self) -> usize {
        self.loads
    }

    /// Shape (B, pages): the first slot of each page of a layer, -1 after the last page.
    ///
    /// Raises ManagerError: layer.
    #[pyo3(signature = (layer=Number::from(0)), text_signature = "($self, layer=0)")]
    fn cachestarts<'py>(&self, py: Python<'py>, layer: Number) -> Result<Bound<'py, PyArray2<i64>>> {
        Ok(self.layer(layer)?.cachestarts.to_pyarray(py))
    }

    /// Shape (k): the positions of all rows of a layer, in the order of the operator's outputs.
    ///
    /// Raises ManagerError: layer.
    #[pyo3(signature = (layer=Number::from(0)), text_signature = "($self, layer=0)")]
    fn key_positions<'py>(&self, py: Python<'py>, layer: Number) -> Result<Bound<'py, PyArray1<i64>>> {
        Ok(self.layer(layer)?.key_positions.clone().into_pyarray(py))
    }

    /// Ends the step: its rows are stored, and those that have left the last tokens become blocks.
    ///
    /// Raises ManagerError: not_observed, store, memory (the step is rolled back then); step_closed, if it has ended.
    fn commit(&self, py: Python<'_>) -> Result<()> {
        self.end(py, true)
    }

    /// Ends the step: its sequences have the tokens and blocks that they had.
    ///
    /// Raises ManagerError of kind step_closed, if it has ended.
    fn rollback(&self, py: Python<'_>) -> Result<()> {
        self.end(py, false)
    }
}
