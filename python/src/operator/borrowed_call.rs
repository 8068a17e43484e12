//! One call of an operator on borrowed tensors.

use kvcache_op::schema::{OperatorKind, Role, STATIC_SCALES};
use kvcache_op::{Checked, ElementType, Error, Operands, Operator, Output, TensorMut};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::geometry::element;
use super::kind::{cache_attributes, kind, operator};
use super::tensor::{Access, Tensor};
use crate::refusal::{Refusal, Result};
use crate::threads::Threads;

/// Checks a call of the operator and makes it; returns its outputs: those given, in place, new numpy arrays for the
/// others. `inputs` and `outputs` are in the operator's order, with None for what is left out; attention writes its
/// mass where an array for it stands after the outputs. `expected` has, by the names of inputs, their type and, unless
/// it is None, their shape, with None for any length.
#[pyfunction]
#[pyo3(signature = (op_type, attributes, inputs, outputs, expected=None))]
pub fn run<'py>(
    py: Python<'py>,
    op_type: &str,
    attributes: &Bound<'py, PyDict>,
    inputs: Vec<Bound<'py, PyAny>>,
    outputs: Vec<Bound<'py, PyAny>>,
    expected: Option<&Bound<'py, PyDict>>,
) -> Result<Bound<'py, PyTuple>> {
    let (operator, tensors) = borrow(op_type, attributes, inputs, expected)?;
    let checked = check_borrowed(&operator, &tensors)?;
    let mut written = Vec::new();
    for (index, output) in checked.outputs().iter().enumerate() {
        let array = match outputs.get(index).filter(|given| !given.is_none()) {
            Some(given) => given.clone(),
            None if output.optional => continue,
            None => allocate(py, output)?,
        };
        written.push(Tensor::new(output.name, &array, Access::Write)?);
    }
    let call = SendToSameThread((checked, written.iter().map(Tensor::write).collect()));
    py.detach(move || call.run())?;
    Ok(PyTuple::new(py, written.iter().take(operator.kind().outputs().len()).map(Tensor::object))?)
}

/// Checks a call of the operator and returns the shape of its outputs. Writes nothing.
#[pyfunction]
#[pyo3(signature = (op_type, attributes, inputs, expected=None))]
pub fn check<'py>(
    py: Python<'py>,
    op_type: &str,
    attributes: &Bound<'py, PyDict>,
    inputs: Vec<Bound<'py, PyAny>>,
    expected: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let (operator, tensors) = borrow(op_type, attributes, inputs, expected)?;
    PyTuple::new(py, check_borrowed(&operator, &tensors)?.output_shape())
}

/// The operator and the borrowed inputs of a call, by position, which are as `expected`.
fn borrow<'py>(
    op_type: &str,
    attributes: &Bound<'py, PyDict>,
    inputs: Vec<Bound<'py, PyAny>>,
    expected: Option<&Bound<'py, PyDict>>,
) -> Result<(Operator, Vec<Option<Tensor<'py>>>)> {
    let kind = kind(op_type, &OperatorKind::ALL)?;
    let operator = operator(kind, attributes)?;
    let cache = cache_attributes(&operator);
    // What an export writes that has no mask, sinks or scale: tensors without elements, which count as not given.
    let may_be_empty = |name| match Role::of(name) {
        Role::Mask => true,
        Role::Scale => cache.is_some_and(|cache| cache.quant_bit == 0),
        _ => false,
    };
    let reads_scale = cache.is_some_and(|cache| cache.quant_type == STATIC_SCALES);
    let tensor = |(name, given): (&&'static str, Option<Bound<'py, PyAny>>)| {
        let Some(given) = given.filter(|given| !given.is_none()) else {
            return match OperatorKind::is_optional(name) {
                true => Ok(None),
                false => Err(Error::InputMissing { input: name }.into()),
            };
        };
        let access = match Role::of(name) {
            Role::Cache => Access::WriteInt4,
            Role::Scale if !reads_scale => Access::Write,
            Role::Panels => Access::ReadBytes,
            Role::Index => Access::Index,
            _ => Access::Read,
        };
        let tensor = match may_be_empty(name) {
            true => Tensor::with_elements(name, &given, access),
            false => Tensor::new(name, &given, access).map(Some),
        }?;
        let expected = expected.map(|expected| expected.get_item(name)).transpose()?.flatten();
        if let (Some(tensor), Some(expected)) = (&tensor, expected) {
            let (expected, shape): (String, Option<Vec<Option<usize>>>) = expected.extract()?;
            tensor.check(name, element(name, &expected)?, shape.as_deref())?;
        }
        Ok(tensor)
    };
    let given = inputs.into_iter().map(Some).chain(std::iter::repeat(None));
    let tensors = kind.inputs().iter().zip(given).map(tensor).collect::<Result<_>>()?;
    Ok((operator, tensors))
}

fn check_borrowed<'t>(operator: &Operator, tensors: &'t [Option<Tensor<'_>>]) -> Result<Checked<'t>> {
    let mut operands = Operands::default();
    let mut packed = false;
    for (&name, tensor) in operator.kind().inputs().iter().zip(tensors) {
        packed |= name == "cache" && tensor.as_ref().is_some_and(|cache| cache.element() == ElementType::Int4);
        let is_state = matches!(name, "cache" | "scale");
        operands
            .push(tensor.as_ref().map(|tensor| if is_state { tensor.write().into() } else { tensor.read().into() }));
    }
    operator.check(operands).map_err(|error| match error.kind() {
        kind @ "illegal_types" if packed => {
            let why = "cache is an array of uint8, which is int4 with two elements in a byte";
            Refusal::new(kind, format!("{error}; {why}"))
        }
        _ => error.into(),
    })
}

/// A new array for an output, uninitialized.
fn allocate<'py>(py: Python<'py>, Output { name: output, element, shape, .. }: &Output) -> Result<Bound<'py, PyAny>> {
    let (numpy, name) = (py.import("numpy")?, element.name());
    let of_ml_dtypes = |_| py.import("ml_dtypes").and_then(|package| package.getattr(name));
    let dtype = numpy.getattr(name).or_else(of_ml_dtypes).map_err(|error| {
        let message = format!("{output} of {name} needs the package ml_dtypes, unless it is given: {error}");
        Refusal::new("package_missing", message)
    })?;
    numpy
        .call_method1("empty", (PyTuple::new(py, &shape[..])?, dtype))
        .map_err(|_| Error::OutOfMemory { output, shape: shape.clone() }.into())
}

/// A call and its outputs, for a closure that runs without the GIL, but on the thread that made it.
struct SendToSameThread<'t, 'o>((Checked<'t>, Vec<TensorMut<'o>>));

// SAFETY: the pointers in a call are to tensors that `run` keeps until the closure has returned, on one thread.
unsafe impl Send for SendToSameThread<'_, '_> {}

impl SendToSameThread<'_, '_> {
    fn run(self) -> Result<(), Error> {
        let (call, outputs) = self.0;
        call.run(outputs, &Threads)
    }
}
