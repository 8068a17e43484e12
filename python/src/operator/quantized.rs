//! The operators over panels of quantized matrices, on borrowed tensors.

use kvcache_op::{Error, GatherInputs, MatMulInputs, MatrixInputs, QuantizedGather, QuantizedMatMul};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::kind::attributes_of;
use super::tensor::{Access, Tensor};
use crate::refusal::Refusal;
use crate::threads::Threads;

/// The tensors of a matrix.
struct Matrix<'py> {
    panels: Tensor<'py>,
    scales: Tensor<'py>,
    minima: Option<Tensor<'py>>,
}

impl<'py> Matrix<'py> {
    fn new(
        panels: &Bound<'py, PyAny>,
        scales: &Bound<'py, PyAny>,
        minima: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self {
            panels: Tensor::new("panels", panels, Access::ReadBytes)?,
            scales: Tensor::new("scales", scales, Access::Read)?,
            minima: minima.map(|minima| Tensor::new("minima", minima, Access::Read)).transpose()?,
        })
    }

    fn inputs(&self) -> MatrixInputs<'_> {
        let Self { panels, scales, minima } = self;
        MatrixInputs { panels: panels.read(), scales: scales.read(), minima: minima.as_ref().map(Tensor::read) }
    }
}

/// `QuantizedMatMul`; returns `y`, which is new if it is not given.
#[pyfunction]
#[pyo3(signature = (attributes, x, panels, scales, minima=None, bias=None, y=None))]
#[expect(clippy::too_many_arguments, reason = "those of the operator")]
pub fn quantized_matmul<'py>(
    py: Python<'py>,
    attributes: &Bound<'py, PyDict>,
    x: &Bound<'py, PyAny>,
    panels: &Bound<'py, PyAny>,
    scales: &Bound<'py, PyAny>,
    minima: Option<&Bound<'py, PyAny>>,
    bias: Option<&Bound<'py, PyAny>>,
    y: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let operator = QuantizedMatMul::new(attributes_of("QuantizedMatMul", attributes)?).map_err(Refusal::from)?;
    let (x, matrix) = (Tensor::new("x", x, Access::Read)?, Matrix::new(panels, scales, minima)?);
    let bias = bias.map(|bias| Tensor::new("bias", bias, Access::Read)).transpose()?;
    let inputs = MatMulInputs { x: x.read(), matrix: matrix.inputs(), bias: bias.as_ref().map(Tensor::read) };
    let call = operator.check(&inputs).map_err(Refusal::from)?;
    let y = output(py, y, call.output_shape())?;
    let memory = y.write();
    py.detach(move || call.run(memory, &Threads)).map_err(Refusal::from)?;
    Ok(y.object().clone())
}

/// `QuantizedGather`; returns `y`, which is new if it is not given.
#[pyfunction]
#[pyo3(signature = (attributes, indices, panels, scales, minima=None, y=None))]
pub fn quantized_gather<'py>(
    py: Python<'py>,
    attributes: &Bound<'py, PyDict>,
    indices: &Bound<'py, PyAny>,
    panels: &Bound<'py, PyAny>,
    scales: &Bound<'py, PyAny>,
    minima: Option<&Bound<'py, PyAny>>,
    y: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let operator = QuantizedGather::new(attributes_of("QuantizedGather", attributes)?).map_err(Refusal::from)?;
    let (indices, matrix) = (Tensor::new("indices", indices, Access::Index)?, Matrix::new(panels, scales, minima)?);
    let inputs = GatherInputs { indices: indices.read(), matrix: matrix.inputs() };
    let call = operator.check(&inputs).map_err(Refusal::from)?;
    let y = output(py, y, call.output_shape())?;
    let memory = y.write();
    py.detach(move || call.run(memory, &Threads)).map_err(Refusal::from)?;
    Ok(y.object().clone())
}

/// The output: what is given for it, or a new array.
fn output<'py>(py: Python<'py>, y: Option<Bound<'py, PyAny>>, shape: &[usize]) -> PyResult<Tensor<'py>> {
    let out_of_memory = |_| Refusal::from(Error::OutOfMemory { output: "y", shape: shape.into() });
    let y = match y {
        Some(y) => y,
        None => py.import("numpy")?.call_method1("empty", (shape, "float32")).map_err(out_of_memory)?,
    };
    Tensor::new("y", &y, Access::Write)
}
