//! One call of an operator on borrowed tensors.

use kvcache_op::schema::STATIC_SCALES;
use kvcache_op::schema::multi_head_cache_attention::MASS;
use kvcache_op::{
    AttentionCall, AttentionInputs, CacheAttentionInputs, Call, ElementType, Error, IndexInputs, Inputs, Outputs,
    TensorMut, TensorRef,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::geometry::element;
use super::kind::{Kind, Operator};
use super::tensor::{Access, Tensor};
use crate::refusal::Refusal;
use crate::threads::Threads;

/// The inputs that a call may lack.
pub const OPTIONAL: [&str; 3] = ["scale", "attn_mask", "head_sink"];
/// The inputs that decide where bytes are read and written.
const INDICES: [&str; 7] =
    ["seqstarts", "kvstarts", "cachestarts", "start_pos", "decoding_batches", "max_seqlen", "max_kvlen"];

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
) -> PyResult<Bound<'py, PyTuple>> {
    let (operator, operands) = prepare(op_type, attributes, inputs, expected)?;
    let checked = operands.check(&operator)?;
    let (shape, t1) = (checked.output_shape(), operands.t1()?);
    let names = operands.kind.outputs;
    let mass = outputs.get(names.len()).filter(|mass| names.len() == 1 && !mass.is_none());
    let mass = mass.map(|mass| Tensor::new(MASS, mass, Access::Write)).transpose()?;
    let given = outputs.into_iter().map(Some).chain(std::iter::repeat(None));
    let outputs = names
        .iter()
        .zip(given)
        .map(|(name, given)| match given.filter(|given| !given.is_none()) {
            Some(given) => Tensor::new(name, &given, Access::Write),
            None => Tensor::new(name, &allocate(py, name, shape, t1)?, Access::Write),
        })
        .collect::<PyResult<Vec<_>>>()?;
    let call = Here((checked, outputs.iter().chain(&mass).map(Tensor::write).collect()));
    py.detach(move || call.run()).map_err(Refusal::from)?;
    PyTuple::new(py, outputs.iter().map(Tensor::object))
}

/// Checks a call of the operator and returns the shape of its outputs. Writes nothing.
#[pyfunction]
#[pyo3(signature = (op_type, attributes, inputs, expected=None))]
pub fn check(
    op_type: &str,
    attributes: &Bound<'_, PyDict>,
    inputs: Vec<Bound<'_, PyAny>>,
    expected: Option<&Bound<'_, PyDict>>,
) -> PyResult<(usize, usize, usize)> {
    let (operator, operands) = prepare(op_type, attributes, inputs, expected)?;
    Ok(operands.check(&operator)?.output_shape().into())
}

/// The operator and the borrowed inputs of a call, which are as `expected`.
fn prepare<'py>(
    op_type: &str,
    attributes: &Bound<'py, PyDict>,
    inputs: Vec<Bound<'py, PyAny>>,
    expected: Option<&Bound<'py, PyDict>>,
) -> PyResult<(Operator, Operands<'py>)> {
    let kind = Kind::from_name(op_type)?;
    let operator = Operator::new(kind, attributes)?;
    // What an export writes that has no mask, sinks or scale: tensors without elements, which count as not given.
    let may_be_empty = |name| match name {
        "attn_mask" | "head_sink" => true,
        "scale" => operator.cache_attributes().is_some_and(|cache| cache.quant_bit == 0),
        _ => false,
    };
    let reads_scale = operator.cache_attributes().is_some_and(|cache| cache.quant_type == STATIC_SCALES);
    let given = inputs.into_iter().map(Some).chain(std::iter::repeat(None));
    let tensors = kind
        .inputs
        .iter()
        .zip(given)
        .map(|(name, given)| match given.filter(|given| !given.is_none()) {
            Some(given) => {
                let access = match *name {
                    "cache" => Access::WriteInt4,
                    "scale" if !reads_scale => Access::Write,
                    name if INDICES.contains(&name) => Access::Index,
                    _ => Access::Read,
                };
                let tensor = match may_be_empty(*name) {
                    true => Tensor::with_elements(name, &given, access),
                    false => Tensor::new(name, &given, access).map(Some),
                }?;
                let expected = expected.map(|expected| expected.get_item(name)).transpose()?.flatten();
                if let (Some(tensor), Some(expected)) = (&tensor, expected) {
                    let (expected, shape): (String, Option<Vec<Option<usize>>>) = expected.extract()?;
                    tensor.check(name, element(name, &expected)?, shape.as_deref())?;
                }
                Ok(tensor)
            }
            None if OPTIONAL.contains(name) => Ok(None),
            None => Err(Refusal::new("input_missing", format!("{name} is absent, expected a tensor")).into()),
        })
        .collect::<PyResult<Vec<_>>>()?;
    Ok((operator, Operands { kind, tensors }))
}

/// A new array for an output, uninitialized.
fn allocate<'py>(
    py: Python<'py>,
    output: &'static str,
    shape: [usize; 3],
    element: ElementType,
) -> PyResult<Bound<'py, PyAny>> {
    let (numpy, name) = (py.import("numpy")?, element.name());
    let of_ml_dtypes = |_| py.import("ml_dtypes").and_then(|package| package.getattr(name));
    let dtype = numpy.getattr(name).or_else(of_ml_dtypes).map_err(|error| {
        let message = format!("{output} of {name} needs the package ml_dtypes, unless it is given: {error}");
        PyErr::from(Refusal::new("package_missing", message))
    })?;
    numpy
        .call_method1("empty", (<(usize, usize, usize)>::from(shape), dtype))
        .map_err(|_| Refusal::from(Error::OutOfMemory { output, shape: shape.into() }).into())
}

/// The inputs of a call, by position.
struct Operands<'py> {
    kind: &'static Kind,
    tensors: Vec<Option<Tensor<'py>>>,
}

impl<'py> Operands<'py> {
    fn optional(&self, name: &str) -> Option<&Tensor<'py>> {
        let i = self.kind.inputs.iter().position(|input| *input == name)?;
        self.tensors.get(i)?.as_ref()
    }

    fn required(&self, name: &'static str) -> Result<&Tensor<'py>, Refusal> {
        self.optional(name).ok_or_else(|| Refusal::new("input_missing", format!("{name} is absent, expected a tensor")))
    }

    fn read(&self, name: &'static str) -> Result<TensorRef<'_>, Refusal> {
        self.required(name).map(Tensor::read)
    }

    /// The type of the outputs.
    fn t1(&self) -> Result<ElementType, Refusal> {
        self.required(self.kind.inputs[0]).map(Tensor::element)
    }

    fn stored(&self) -> Result<Inputs<'_>, Refusal> {
        Ok(Inputs {
            current_key: self.read("current_key")?,
            current_value: self.read("current_value")?,
            indices: IndexInputs {
                seqstarts: self.read("seqstarts")?,
                kvstarts: self.read("kvstarts")?,
                cachestarts: self.read("cachestarts")?,
                start_pos: self.read("start_pos")?,
                max_seqlen: self.read("max_seqlen")?,
                max_kvlen: self.read("max_kvlen")?,
            },
        })
    }

    fn check(&self, operator: &Operator) -> Result<Checked<'_>, Refusal> {
        let packed = self.optional("cache").is_some_and(|cache| cache.element() == ElementType::Int4);
        self.checked(operator).map_err(|refusal| match packed {
            true => refusal
                .because("illegal_types", "; cache is an array of uint8, which is int4 with two elements in a byte"),
            false => refusal,
        })
    }

    fn checked(&self, operator: &Operator) -> Result<Checked<'_>, Refusal> {
        let cache = || self.required("cache").map(Tensor::write);
        let scale = || self.optional("scale").map(Tensor::write);
        let [attn_mask, head_sink] = ["attn_mask", "head_sink"].map(|name| self.optional(name).map(Tensor::read));
        Ok(match operator {
            Operator::KeyValueCache(op) => Checked::Rows(op.check(&self.stored()?, cache()?, scale())?),
            Operator::MultiHeadAttention(op) => Checked::Attention(op.check(&AttentionInputs {
                query: self.read("query")?,
                key: self.read("key")?,
                value: self.read("value")?,
                seqstarts: self.read("seqstarts")?,
                kvstarts: self.read("kvstarts")?,
                decoding_batches: self.read("decoding_batches")?,
                max_seqlen: self.read("max_seqlen")?,
                max_kvlen: self.read("max_kvlen")?,
                attn_mask,
                head_sink,
            })?),
            Operator::MultiHeadCacheAttention(op) => {
                let inputs = CacheAttentionInputs {
                    query: self.read("query")?,
                    stored: self.stored()?,
                    decoding_batches: self.read("decoding_batches")?,
                    attn_mask,
                    head_sink,
                };
                Checked::Attention(op.check(&inputs, cache()?, scale())?)
            }
        })
    }
}

/// A checked call.
enum Checked<'a> {
    Rows(Call<'a>),
    Attention(AttentionCall<'a>),
}

impl Checked<'_> {
    fn output_shape(&self) -> [usize; 3] {
        match self {
            Self::Rows(call) => call.output_shape(),
            Self::Attention(call) => call.output_shape(),
        }
    }
}

/// A call and its outputs, for a closure that runs without the GIL, but on the thread that made it.
struct Here<'a>((Checked<'a>, Vec<TensorMut<'a>>));

// SAFETY: the pointers in a call are those of tensors that `run` keeps until the closure has returned, on one thread.
unsafe impl Send for Here<'_> {}

impl<'a> Here<'a> {
    fn run(self) -> Result<(), Error> {
        let (call, outputs) = self.0;
        let mut outputs = outputs.into_iter();
        match (call, outputs.next(), outputs.next()) {
            (Checked::Rows(call), Some(key), Some(value)) => call.run(Outputs { key, value }, &Threads),
            (Checked::Attention(call), Some(output), None) => call.run(output, &Threads),
            (Checked::Attention(call), Some(output), Some(mass)) => call.run_with_mass(output, mass, &Threads),
            _ => unreachable!("there is a tensor for each of the operator's outputs"),
        }
    }
}
